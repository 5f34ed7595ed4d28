"""Mask graphs with tokenized targets (the paper's section 2.1): spectrum and label error of any tokenizer.

M is the joint weight of views x1 (rows) and targets x2 (columns), dense or scipy.sparse; `tok` gives each target its
token. Everything goes through the l × l token matrix K (docs/theory.md#a-mask-graph), no graph on the views is made.
"""

from __future__ import annotations

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used

from clustermim.count_tables import Floats, Input, Ints
from clustermim.theory.inputs import Matrix, Weights, as_labels, as_tokens, as_weights, check_ratio


def token_joint(M: Weights, tok: Input) -> Matrix:
    """J = M·E: joint probability of views and tokens, (N1, l), summing to 1.

    M: (N1, N2) weights at any scale; a scipy.sparse matrix gives a csr_array. tok: (N2,) ids 0..l-1 without gaps.
    The paper's section 2.1, sum over the members of an equivalence class.
    """
    weights, total = as_weights(M)
    return weights @ _membership(as_tokens(tok, weights.shape[1])).T / total


def token_matrix(M: Weights, tok: Input) -> Floats:
    """K = P^{-1/2} Q P^{-1/2}, (l, l), with the non-zero spectrum of the normalised augmentation graph Ā.

    Q(S, S') = Σ_x d(x) P(S|x) P(S'|x) says how often two draws of one view give tokens S and S'; p_S is the mass of a
    token. A token without mass has an all-zero row.
    """
    B = _normalised(token_joint(M, tok))
    return _dense(B.T @ B)


def spectrum(M: Weights, tok: Input) -> Floats:
    """Eigenvalues of Ā, largest first: those of K, or of B Bᵀ when there are fewer views than tokens.

    Views and tokens without mass are left out, so there are min(views, tokens) of them; the first is 1 and any
    further eigenvalue of Ā is 0.
    """
    B = _normalised(token_joint(M, tok))
    count = min(int((B.sum(axis=axis) > 0).sum()) for axis in (0, 1))
    return np.clip(np.linalg.eigvalsh(_smaller_gram(B))[::-1][:count], 0, None)


def sum_sq(M: Weights, tok: Input) -> float:
    """Σλ² = ‖K‖_F² = 1 + χ²(Q ‖ p⊗p), the spectral term of the bound; no eigenvalue is computed."""
    gram = _smaller_gram(_normalised(token_joint(M, tok)))
    return float(np.vdot(gram, gram))


def alpha_hard(M: Weights, tok: Input, y1: Input) -> float:
    """α = 1 − Σ_S Σ_k C(k,S)²/p_S with C(k,S) the mass of class k in token S: P(y(x1) ≠ y(x1⁺)).

    y1: (N1,) whole numbers, the classes of the views. α is the mean Gini impurity of the tokens, by mass.
    """
    return impurity(class_mass(M, tok, y1))


def bound(M: Weights, tok: Input, y1: Input, ratio: float = 2.5) -> float:
    """b = Σλ² + r·α, the paper's downstream bound (section 2.1) divided by c1; r = c2/c1."""
    return sum_sq(M, tok) + check_ratio(ratio) * alpha_hard(M, tok, y1)


def class_mass(M: Weights, tok: Input, y1: Input) -> Floats:
    """C(k,S) = Σ_{y(x)=k} J(x,S): mass of each class in each token, (c, l)."""
    joint = token_joint(M, tok)
    return _dense(_membership(as_labels(y1, joint.shape[0], "the labels of the views")) @ joint)


def impurity(mass: Floats) -> float:
    """1 − Σ_S Σ_k C(k,S)²/p_S of a (c, l) table of class masses that sums to 1."""
    purity = np.einsum("ks,ks->s", mass, mass) @ inverse(mass.sum(axis=0))
    return max(float(1 - purity), 0.0)  # rounding may leave it a hair below 0


def inverse(mass: Floats) -> Floats:
    """1/mass, and 0 where there is none: a node without mass takes no part."""
    return np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)


def _membership(ids: Ints) -> Matrix:
    """1 where a point has an id, (ids, points) sparse."""
    return scipy.sparse.csr_array((np.ones(len(ids)), (ids, np.arange(len(ids)))))


def _normalised(joint: Matrix) -> Matrix:
    """B = D^{-1/2} J P^{-1/2}, (N1, l); rows and columns without mass stay 0."""
    views, tokens = (scipy.sparse.diags_array(np.sqrt(inverse(joint.sum(axis=axis)))) for axis in (1, 0))
    return views @ joint @ tokens


def _smaller_gram(B: Matrix) -> Floats:
    """BᵀB or B Bᵀ, whichever is smaller: both have the same non-zero spectrum."""
    return _dense(B @ B.T if B.shape[0] < B.shape[1] else B.T @ B)


def _dense(table: Matrix) -> Floats:
    return np.asarray(table.toarray() if scipy.sparse.issparse(table) else table)
