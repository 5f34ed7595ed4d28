"""Merging tokens: exact changes of Σλ² and α, and a codebook reduced step by step along their trade-off.

Coarser tokens never raise an eigenvalue and never lower α (docs/theory.md#coarser-tokens), so each merge is a trade.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustermim.count_tables import Floats, Input, Ints
from clustermim.errors import ConfigError
from clustermim.theory.graphs import class_mass, impurity, token_matrix
from clustermim.theory.inputs import Weights, as_tokens


def merge_alpha(mass: Floats) -> Floats:
    """Δα of merging tokens i and j, (l, l): p_i p_j/(p_i+p_j)·‖P(·|i) − P(·|j)‖², Ward's criterion.

    mass: (c, l) class masses of the tokens, every token with mass.
    """
    p = mass.sum(axis=0)
    profiles = mass / p
    norms = np.einsum("ks,ks->s", profiles, profiles)
    distance = norms[:, None] + norms - 2 * profiles.T @ profiles
    return np.asarray(np.clip(distance, 0, None) * np.outer(p, p) / np.add.outer(p, p))


def merge_sum_sq(K: Floats, p: Floats, K_squared: Floats | None = None) -> Floats:
    """ΔΣλ² of merging tokens i and j, (l, l): −2‖Kc‖² + (cᵀKc)², c = (√p_j e_i − √p_i e_j)/√(p_i+p_j).

    K: (l, l) token matrix. p: (l,) token masses. K_squared: K·K, if it is at hand.
    """
    squared = K @ K if K_squared is None else K_squared

    def quadratic(table: Floats) -> Floats:
        """cᵀ·table·c for every pair of tokens."""
        first = np.outer(np.diag(table), p)
        return np.asarray((first + first.T - 2 * np.sqrt(np.outer(p, p)) * table) / np.add.outer(p, p))

    return quadratic(K) ** 2 - 2 * quadratic(squared)


@dataclass(frozen=True)
class Merge:
    """One step: token `gone` of the first codebook, with all it had absorbed, joined `kept`."""

    tokens: int  # left after the step
    kept: int
    gone: int
    sum_sq: float
    alpha: float


def greedy_merge(
    M: Weights, tok: Input, y1: Input, ratio: float | None = 2.5, tokens: int = 1
) -> tuple[tuple[float, float], list[Merge]]:
    """((Σλ², α) of the start, merges): always the pair whose merging lowers Σλ² + r·α most, or raises it least.

    M, tok, y1: as in `alpha_hard`; every token needs mass. ratio: r = c2/c1; None looks at α only (Ward on class
    profiles). tokens: when to stop. O(l²) a step: K and K² are updated, not computed again.
    """
    K, mass = token_matrix(M, tok), class_mass(M, tok, y1)
    squared, p = K @ K, mass.sum(axis=0)
    if not 1 <= tokens <= len(p):
        raise ConfigError(f"a codebook of {len(p)} tokens cannot be merged down to {tokens}")
    if (p == 0).any():
        raise ConfigError(f"token {int(np.argmin(p))} has no mass: leave its targets out before merging")
    start, names = (float(np.trace(squared)), impurity(mass)), list(range(len(p)))
    merges: list[Merge] = []
    while len(p) > tokens:
        cost = merge_alpha(mass)
        if ratio is not None:
            cost = ratio * cost + merge_sum_sq(K, p, squared)
        np.fill_diagonal(cost, np.inf)
        i, j = sorted(divmod(int(np.argmin(cost)), len(p)))
        K, squared = _merge_matrices(K, squared, p, i, j)
        mass[:, i] += mass[:, j]
        mass = np.delete(mass, j, axis=1)
        p = mass.sum(axis=0)
        merges.append(Merge(len(p), names[i], names.pop(j), float(np.trace(squared)), impurity(mass)))
    return start, merges


def _merge_matrices(K: Floats, squared: Floats, p: Floats, i: int, j: int) -> tuple[Floats, Floats]:
    """(K', K'²) after a merge. With W the isometry onto the new tokens, WWᵀ = 1 − ccᵀ and K' = WᵀKW, hence
    K'² = WᵀK²W − (WᵀKc)(WᵀKc)ᵀ.
    """
    a, b = np.sqrt(np.array([p[i], p[j]]) / (p[i] + p[j]))

    def rows(table: Floats) -> Floats:
        """Wᵀ·table: row i becomes the weighted sum of rows i and j, row j goes."""
        merged = np.delete(table, j, axis=0)
        merged[i] = a * table[i] + b * table[j]
        return merged

    vector = rows((b * K[:, i] - a * K[:, j])[:, None])  # WᵀKc
    return rows(rows(K).T), rows(rows(squared).T) - vector @ vector.T


def merged_tokens(tok: Input, merges: list[Merge]) -> Ints:
    """The tokenizer after some merges: (N2,) ids 0..l-1 in the order of the first codebook's ids."""
    ids = as_tokens(tok, len(np.asarray(tok)))
    owner = np.arange(int(ids.max()) + 1)
    for merge in merges:
        owner[owner == merge.gone] = merge.kept
    return np.unique(owner[ids], return_inverse=True)[1].astype(np.int64)
