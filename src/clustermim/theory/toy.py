"""The paper's toy model (section 2.2, appendices B and C): s classes of n points, m shared by every two classes.

A datum is a class, drawn evenly, and an ordered pair (x1, x2) of its points. Z is the incidence matrix, N points ×
s classes. Every quantity of a tokenizer follows from one s × s matrix, G = `class_gram` (docs/theory.md#the-toy-model),
so the model may have millions of points; only `toy_joint` writes its N × N weights out. For three tokenizers there are
closed forms: with t = m/n, θ = 1 − st/2 and γ = θ (identity), θ² (class-wise) or 0 (cross-class), Σλ² = 1 + (s−1)θ²γ².
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from clustermim.count_tables import Floats, Input, Ints, to_array
from clustermim.errors import ConfigError, DataError
from clustermim.theory.graphs import MAX_VIEWS
from clustermim.theory.inputs import as_tokens

Convention = Literal["excl", "disjoint", "soft", "latent"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
Kind = Literal["identity", "mae", "pattern", "class", "cross", "single"]
Number = TypeVar("Number", Fraction, float)


def check_toy(n: int, m: int, s: int) -> None:
    """Refuse sizes that no toy model has."""
    if s < 2:
        raise ConfigError(f"the toy model needs at least 2 classes, not {s}")
    if n < 1 or m < 0:
        raise ConfigError(f"a class needs at least 1 point and 0 shared ones, not {n} and {m}")
    if n < (s - 1) * m:
        raise ConfigError(f"{n} points a class are too few: {m} shared with each of {s - 1} others need {(s - 1) * m}")


def toy_incidence(n: int, m: int, s: int = 2) -> Ints:
    """Z: which point belongs to which class, (N, s) of 0 and 1, N = sn − m·s(s−1)/2.

    Order: the exclusive points of class 0, 1, …, then the m shared points of the pairs (0,1), (0,2), …, (s−2,s−1).

    >>> toy_incidence(2, 1).tolist()
    [[1, 0], [0, 1], [1, 1]]
    """
    check_toy(n, m, s)
    eye = np.eye(s, dtype=np.int64)
    shared = [eye[a] + eye[b] for a, b in combinations(range(s), 2)]
    return np.concatenate([np.repeat(eye, n - (s - 1) * m, axis=0), np.repeat(shared, m, axis=0)])


def toy_joint(Z: Input) -> Floats:
    """M = ZZᵀ/(sn²), (N, N): |classes(x1) ∩ classes(x2)|/(sn²), hence 0 for points without a common class."""
    table = _as_incidence(Z)
    if len(table) > MAX_VIEWS:
        raise ConfigError(f"the weights of {len(table)} points are too many to write out: at most {MAX_VIEWS}")
    s, n = table.shape[1], int(table[:, 0].sum())
    return np.asarray((table @ table.T) / (s * n**2))


def tok_identity(Z: Input) -> Ints:
    """One token a point: no tokenization, as in MAE."""
    return np.arange(len(_as_incidence(Z)), dtype=np.int64)


def tok_pattern(Z: Input) -> Ints:
    """One token a region: the exclusive points of each class, the shared points of each pair."""
    return _regions(_as_incidence(Z))[0]


def tok_class(Z: Input) -> Ints:
    """One token a class; the points that two classes share are given to them alternately."""
    table = _as_incidence(Z)
    first, last = np.argmax(table, axis=1), table.shape[1] - 1 - np.argmax(table[:, ::-1], axis=1)
    return np.asarray(np.where(_regions(table)[1] % 2 == 1, last, first))


def tok_cross(Z: Input, tokens: int) -> Ints:
    """Tokens that each have the same share of every region: the points of a region are dealt round-robin."""
    _, rank = _regions(_as_incidence(Z))
    if not 1 <= tokens <= int(rank.max()) + 1:
        raise ConfigError(f"cross-class tokens need between 1 and {int(rank.max()) + 1} tokens here, not {tokens}")
    return rank % tokens


def token_counts(Z: Input, tok: Input) -> Ints:
    """a_ik = |S_i ∩ P_k|: points of class k in token i, (l, s)."""
    table = _as_incidence(Z)
    ids = as_tokens(tok, len(table))
    counts = np.zeros((int(ids.max()) + 1, table.shape[1]), dtype=np.int64)
    np.add.at(counts, ids, table)
    return counts


def class_gram(a: Input) -> Floats:
    """G_kk' = (1/n) Σ_i a_ik a_ik'/N_i, (s, s): symmetric, positive semidefinite, rows summing to 1.

    a: (l, s) token counts, N_i their row sums, n the size of a class.
    """
    counts = to_array(a, "the token counts").astype(np.float64)
    if counts.ndim != 2 or (counts < 0).any() or (counts.sum(axis=1) == 0).any():
        raise DataError("the token counts must be a table of tokens × classes without empty tokens")
    sizes = counts.sum(axis=0)
    _check_even(sizes)
    return np.asarray((counts / counts.sum(axis=1, keepdims=True)).T @ counts / sizes[0])


def toy_weights(Z: Input, tok: Input) -> Floats:
    """Edge weight between exclusive points of classes k and k', (s, s): A = G_kk'/(sn²), intra on the diagonal."""
    counts = token_counts(Z, tok)
    s, n = counts.shape[1], int(counts[:, 0].sum())
    return np.asarray(class_gram(counts) / (s * n**2))


def toy_spectrum(Z: Input, tok: Input) -> Floats:
    """The s eigenvalues of Q·G, largest first, Q being G of the identity: all that can be non-zero in Ā's."""
    scale, vectors = np.linalg.eigh(class_gram(_as_incidence(Z)))
    root = vectors * np.sqrt(np.clip(scale, 0, None))  # Q = root·rootᵀ; Q may be singular
    values = np.linalg.eigvalsh(root.T @ class_gram(token_counts(Z, tok)) @ root)
    return np.clip(values[::-1], 0, None)


def toy_sum_sq(Z: Input, tok: Input) -> float:
    """Σλ² = tr((QG)²)."""
    product = class_gram(_as_incidence(Z)) @ class_gram(token_counts(Z, tok))
    return float(np.sum(product * product.T))


def toy_alpha(Z: Input, tok: Input, convention: Convention = "latent") -> float:
    """α under one of four meanings of "the label of a shared point" (docs/theory.md#the-label-of-a-shared-point).

    excl: only two exclusive points can disagree (the paper's formula). disjoint: points without a common class
    disagree. soft: labels drawn independently from each point's classes. latent: the class each image came from.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    table = _as_incidence(Z)
    G = class_gram(token_counts(table, tok))
    s, n = table.shape[1], int(table[:, 0].sum())
    if convention == "latent":
        return float(1 - np.trace(G) / s)
    patterns, sizes = np.unique(table, axis=0, return_counts=True)
    degree, common = patterns.sum(axis=1), patterns @ patterns.T
    if convention == "excl":
        disagree = (common == 0) & (np.maximum.outer(degree, degree) == 1)
    elif convention == "disjoint":
        disagree = common == 0
    else:
        disagree = 1 - common / np.outer(degree, degree)
    weights = patterns @ G @ patterns.T / (s * n**2)  # A between two points of these patterns
    return float(sizes @ (weights * disagree) @ sizes)


def _as_incidence(Z: Input) -> Ints:
    table = to_array(Z, "the incidence matrix")
    if table.ndim != 2 or not np.isin(table, (0, 1)).all() or (table.sum(axis=1) == 0).any():
        raise DataError("the incidence matrix must hold 0 and 1, and every point needs a class")
    _check_even(table.sum(axis=0))
    return table.astype(np.int64)


def _check_even(sizes: Floats | Ints) -> None:
    if (sizes != sizes[0]).any():
        raise DataError("all classes of the toy model must have the same number of points")


def _regions(table: Ints) -> tuple[Ints, Ints]:
    """(pattern, rank): each point's membership pattern, numbered as they appear, and 0, 1, 2, … within a pattern."""
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    regions = np.argsort(np.argsort(first))[inverse]
    order = np.argsort(regions, kind="stable")
    starts = np.searchsorted(regions[order], regions[order])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - starts
    return regions, rank


class ToyClosed(NamedTuple, Generic[Number]):
    """Everything the closed forms say about one tokenizer."""

    gamma: Number
    theta: Number
    sum_sq: Number
    intra: Number  # edge weight between exclusive points of one class
    inter: Number  # … of two classes
    alpha_excl: Number
    alpha_disjoint: Number
    alpha_soft: Number
    alpha_latent: Number


def toy_closed(n: int, m: int, s: int = 2, kind: Kind = "identity") -> ToyClosed[float]:
    """The closed forms as floats. See `toy_closed_exact`.

    >>> toy_closed(10, 2, 2, "cross").alpha_excl
    0.32
    """
    return ToyClosed(*(float(value) for value in toy_closed_exact(n, m, s, kind)))


def toy_closed_exact(n: int, m: int, s: int = 2, kind: Kind = "identity") -> ToyClosed[Fraction]:
    """The closed forms in rationals (docs/theory.md#the-toy-model).

    kind: identity (also called mae, and the same graph as pattern), class (m must be even: shared points are
    halved), cross (any number of tokens that divides the regions; the same as single).
    """
    check_toy(n, m, s)
    if kind == "class" and m % 2:
        raise ConfigError(f"class-wise closed forms halve the shared points: {m} is odd")
    t, slope = Fraction(m, n), Fraction(s - 1, s)
    theta = 1 - s * t / 2
    gammas = {"class": theta**2} | dict.fromkeys(("cross", "single"), Fraction(0))
    gammas |= dict.fromkeys(("identity", "mae", "pattern"), theta)
    if kind not in gammas:
        raise ConfigError(f"there is no closed form for {kind!r}: identity, pattern, class, cross or single")
    gamma = gammas[kind]
    return ToyClosed(
        gamma=gamma,
        theta=theta,
        sum_sq=1 + (s - 1) * theta**2 * gamma**2,
        intra=(1 + (s - 1) * gamma) / (s * n) ** 2,
        inter=(1 - gamma) / (s * n) ** 2,
        alpha_excl=slope * kappa(t, s, "excl") * (1 - gamma),
        alpha_disjoint=slope * kappa(t, s, "disjoint") * (1 - gamma),
        alpha_soft=slope * (1 - theta**2 * gamma),  # a constant part more than κ(1 − γ)
        alpha_latent=slope * (1 - gamma),
    )


def kappa(t: Any, s: int, convention: Convention) -> Any:
    """κ: how steeply α falls with γ, in units of (s−1)/s, for a number or polynomial t."""
    e = 1 - (s - 1) * t
    if convention == "excl":
        return e**2
    if convention == "disjoint":
        return e**2 + 2 * (s - 2) * e * t + (s - 2) * (s - 3) * t**2
    return (1 - s * t / 2) ** 2 if convention == "soft" else 1 + 0 * t
