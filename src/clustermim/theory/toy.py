"""The paper's toy model (section 2.2, appendices B and C): s classes of n points, m shared by every two classes.

A datum is a class, drawn evenly, and an ordered pair (x1, x2) of its points. Z is the incidence matrix, N points ×
s classes. Every quantity of a tokenizer follows from one s × s matrix, G = `class_gram` (docs/theory.md#the-toy-model),
so the model may have millions of points.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from clustermim.count_tables import Floats, Input, Ints, to_array
from clustermim.errors import ConfigError, DataError
from clustermim.theory.inputs import as_tokens


def check_toy(n: int, m: int, s: int) -> None:
    """Refuse sizes that no toy model has."""
    if s < 2 or n < 1 or m < 0:
        raise ConfigError(
            f"the toy model needs at least 2 classes, 1 point of each and 0 shared ones: {s}, {n} and {m}"
        )
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


def tok_identity(Z: Input) -> Ints:
    """One token a point: no tokenization, as in MAE."""
    return np.arange(len(as_incidence(Z)), dtype=np.int64)


def tok_pattern(Z: Input) -> Ints:
    """One token a region: the exclusive points of each class, the shared points of each pair."""
    return _regions(as_incidence(Z))[0]


def tok_class(Z: Input) -> Ints:
    """One token a class; the points that two classes share are given to them alternately."""
    table = as_incidence(Z)
    first, last = np.argmax(table, axis=1), table.shape[1] - 1 - np.argmax(table[:, ::-1], axis=1)
    return np.asarray(np.where(_regions(table)[1] % 2 == 1, last, first))


def tok_cross(Z: Input, tokens: int) -> Ints:
    """Tokens that each have the same share of every region: the points of a region are dealt round-robin."""
    _, rank = _regions(as_incidence(Z))
    if not 1 <= tokens <= int(rank.max()) + 1:
        raise ConfigError(f"cross-class tokens need between 1 and {int(rank.max()) + 1} tokens here, not {tokens}")
    return rank % tokens


def token_counts(Z: Input, tok: Input) -> Ints:
    """a_ik = |S_i ∩ P_k|: points of class k in token i, (l, s)."""
    table = as_incidence(Z)
    ids = as_tokens(tok, len(table))
    counts = np.zeros((int(ids.max()) + 1, table.shape[1]), dtype=np.int64)
    np.add.at(counts, ids, table)
    return counts


def class_gram(a: Ints) -> Floats:
    """G_kk' = (1/n) Σ_i a_ik a_ik'/N_i, (s, s): symmetric, positive semidefinite, rows summing to 1.

    a: (l, s) token counts, N_i their row sums, n the size of a class.
    """
    return np.asarray((a / a.sum(axis=1, keepdims=True)).T @ a / a[:, 0].sum())


def toy_sum_sq(Z: Input, tok: Input) -> float:
    """Σλ² = tr((QG)²)."""
    product = class_gram(as_incidence(Z)) @ class_gram(token_counts(Z, tok))
    return float(np.sum(product * product.T))


def toy_alpha(Z: Input, tok: Input) -> float:
    """α = 1 − tr G/s; the label of a view is the class that its image came from, also where classes share points."""
    gram = class_gram(token_counts(Z, tok))
    return float(1 - np.trace(gram) / len(gram))


def as_incidence(Z: Input) -> Ints:
    """Z, (N, s) of 0 and 1, with as many points in each class."""
    table = to_array(Z, "the incidence matrix")
    if table.ndim != 2 or not np.isin(table, (0, 1)).all() or (table.sum(axis=1) == 0).any():
        raise DataError("the incidence matrix must hold 0 and 1, and every point needs a class")
    if len(set(table.sum(axis=0).tolist())) > 1:
        raise DataError("all classes of the toy model must have the same number of points")
    return table.astype(np.int64)


def _regions(table: Ints) -> tuple[Ints, Ints]:
    """(pattern, rank): each point's membership pattern, numbered as they appear, and 0, 1, 2, … within a pattern."""
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    regions = np.argsort(np.argsort(first))[inverse]
    order = np.argsort(regions, kind="stable")
    starts = np.searchsorted(regions[order], regions[order])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - starts
    return regions, rank
