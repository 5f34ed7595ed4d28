"""Mask graphs with tokenized targets (the paper's section 2.1): spectrum and label error of any tokenizer.

M is the joint weight of views x1 (rows) and targets x2 (columns), `tok` gives each target its token. Everything
goes through the l × l token matrix K (docs/theory.md#a-mask-graph), so that a million views cost what their non-zero
weights cost. Only `augmentation` forms the graph on the views itself, for small examples.
"""

from __future__ import annotations

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used

from clustermim.count_tables import Floats, Input, Ints
from clustermim.errors import ConfigError, DataError
from clustermim.theory.inputs import Matrix, Weights, as_labels, as_posterior, as_tokens, as_weights, check_ratio

MAX_VIEWS = 5_000  # a dense graph on more views than this would not fit in 200 MB
ROWS = 65_536  # views multiplied at a time, to keep temporaries far below the table
DENSE_ENTRIES = 2**22  # entries of a dense block of views
SPARSE_COST = 30  # one multiplication of a sparse product costs about this many of a dense one


def token_joint(M: Weights, tok: Input) -> Matrix:
    """J = M·E: joint probability of views and tokens, (N1, l), summing to 1.

    M: (N1, N2) weights at any scale; a scipy.sparse matrix gives a csr_array. tok: (N2,) ids 0..l-1 without gaps.
    The paper's section 2.1, sum over the members of an equivalence class.
    """
    weights, total = as_weights(M)
    ids = as_tokens(tok, weights.shape[1])
    size = int(ids.max()) + 1
    if not scipy.sparse.issparse(weights):
        return np.asarray((_membership(ids, size) @ weights.T).T) / total
    columns = ids.astype(weights.indices.dtype)[weights.indices]
    parts = (np.divide(weights.data, total, dtype=np.float64), columns, weights.indptr.copy())
    joint = scipy.sparse.csr_array(parts, shape=(weights.shape[0], size))
    joint.sum_duplicates()
    return joint


def token_matrix(M: Weights, tok: Input) -> Floats:
    """K = P^{-1/2} Q P^{-1/2}, (l, l), with the non-zero spectrum of the normalised augmentation graph Ā.

    Q(S, S') = Σ_x d(x) P(S|x) P(S'|x) says how often two draws of one view give tokens S and S'; p_S is the mass of a
    token. A token without mass has an all-zero row.
    """
    return _gram(_normalised(token_joint(M, tok)))


def spectrum(M: Weights, tok: Input) -> Floats:
    """Eigenvalues of Ā, largest first: those of K, or of B Bᵀ when there are fewer views than tokens.

    Views and tokens without mass are left out, so there are min(views, tokens) of them; the first is 1 and any
    further eigenvalue of Ā is 0.
    """
    B = _normalised(token_joint(M, tok))
    count = min(int((B.sum(axis=axis) > 0).sum()) for axis in (0, 1))
    return np.clip(np.linalg.eigvalsh(_smaller_gram(B))[::-1][:count], 0, None)


def sum_sq(M: Weights, tok: Input, k: int = 0) -> float:
    """Σλ² = ‖K‖_F² = 1 + χ²(Q ‖ p⊗p), the spectral term of the bound; no eigenvalue is computed.

    k: leave out the k largest eigenvalues (the tail-sum form of the bound), which does need them.
    """
    if k < 0:
        raise ConfigError(f"k must be 0 or the number of eigenvalues to leave out, not {k}")
    if k:
        tail = spectrum(M, tok)[k:]
        return float(tail @ tail)
    gram = _smaller_gram(_normalised(token_joint(M, tok)))
    return float(np.vdot(gram, gram))


def augmentation(M: Weights, tok: Input) -> Floats:
    """A = J diag(1/p) Jᵀ, (N1, N1): probability that two views have the same token (the paper's section 2.1).

    Row sums are the degrees d, the total is 1. For small graphs only; nothing else here needs it.
    """
    joint = token_joint(M, tok)
    if joint.shape[0] > MAX_VIEWS:
        raise DataError(f"the graph on {joint.shape[0]} views is too large to write out: at most {MAX_VIEWS}")
    dense: Floats = joint.toarray() if scipy.sparse.issparse(joint) else joint
    return (dense * inverse(dense.sum(axis=0))) @ dense.T


def alpha_hard(M: Weights, tok: Input, y1: Input) -> float:
    """α = 1 − Σ_S Σ_k C(k,S)²/p_S with C(k,S) the mass of class k in token S: P(y(x1) ≠ y(x1⁺)).

    y1: (N1,) whole numbers, the classes of the views. α is the mean Gini impurity of the tokens, by mass.
    """
    return impurity(class_mass(M, tok, y1))


def alpha_soft(M: Weights, tok: Input, posterior: Input) -> float:
    """α when the labels of x1 and x1⁺ are drawn independently from P(class | view), (N1, c)."""
    joint = token_joint(M, tok)
    return impurity((joint.T @ as_posterior(posterior, joint.shape[0])).T)


def bound(M: Weights, tok: Input, y1: Input, ratio: float = 2.5, k: int = 0) -> float:
    """b = Σλ² + r·α, the paper's downstream bound (section 2.1) divided by c1; r = c2/c1.

    k: sum only the eigenvalues after the k largest.
    """
    return sum_sq(M, tok, k) + check_ratio(ratio) * alpha_hard(M, tok, y1)


def class_mass(M: Weights, tok: Input, y1: Input) -> Floats:
    """C(k,S) = Σ_{y(x)=k} J(x,S): mass of each class in each token, (c, l)."""
    joint = token_joint(M, tok)
    labels = as_labels(y1, joint.shape[0], "the labels of the views")
    mass = _membership(labels, int(labels.max()) + 1) @ joint
    return np.asarray(mass.toarray() if scipy.sparse.issparse(mass) else mass)


def impurity(mass: Floats) -> float:
    """1 − Σ_S Σ_k C(k,S)²/p_S of a (c, l) table of class masses that sums to 1."""
    purity = np.einsum("ks,ks->s", mass, mass) @ inverse(mass.sum(axis=0))
    return max(float(1 - purity), 0.0)  # rounding may leave it a hair below 0


def _membership(ids: Ints, size: int) -> Matrix:
    """1 where a point has an id, (size, points) sparse."""
    return scipy.sparse.csr_array((np.ones(len(ids)), (ids, np.arange(len(ids)))), shape=(size, len(ids)))


def _normalised(joint: Matrix) -> Matrix:
    """B = D^{-1/2} J P^{-1/2}, (N1, l); rows and columns without mass stay 0. Consumes a sparse `joint`."""
    views, tokens = (np.sqrt(inverse(joint.sum(axis=axis))) for axis in (1, 0))
    if not scipy.sparse.issparse(joint):
        return views[:, None] * joint * tokens
    joint.data *= np.repeat(views, np.diff(joint.indptr))
    joint.data *= tokens[joint.indices]
    return joint


def _smaller_gram(B: Matrix) -> Floats:
    """BᵀB or B Bᵀ, whichever is smaller: both have the same non-zero spectrum."""
    if B.shape[0] < B.shape[1]:
        B = scipy.sparse.csr_array(B.T) if scipy.sparse.issparse(B) else B.T
    return _gram(B)


def _gram(B: Matrix) -> Floats:
    """BᵀB, (columns, columns) dense. A sparse B is multiplied in blocks of rows, by the cheaper of two ways."""
    if not scipy.sparse.issparse(B):
        return np.asarray(B.T @ B)
    rows, columns = B.shape
    pairs = float(np.sum(np.diff(B.indptr).astype(np.float64) ** 2))
    dense = pairs * SPARSE_COST > rows * columns**2
    step = max(1, DENSE_ENTRIES // columns) if dense else ROWS
    gram = np.zeros((columns, columns))
    for start in range(0, rows, step):
        block = B[start : start + step].toarray() if dense else B[start : start + step]
        gram += block.T @ block if dense else (block.T @ block).toarray()
    return gram


def inverse(mass: Floats) -> Floats:
    """1/mass, and 0 where there is none: a node without mass takes no part."""
    return np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)
