"""TCAS without the bias of small counts: a token seen once looks pure, whatever it means.

With N_i patches the plug-in purity is too large by (1 − q_i)/N_i on average, so large codebooks look better
than they are (docs/theory.md#few-patches-a-token). Both functions estimate TCAS from plain frequencies with C_ii.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from clustermim.count_tables import Floats, Input, as_counts, as_table, gram_sum_sq
from clustermim.errors import DataError

FOLDS = 4
# The three ways to split four folds into two pairs.
PAIRINGS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
PAIRS = tuple(combinations(range(FOLDS), 2))
MIN_PATCHES = 4  # (1 − q)² has degree four in the class shares


def tcas_unbiased(R: Input) -> tuple[float, list[int]]:
    """TCAS and the tokens it rests on, unbiased when patches are independent.

    R: (l1, l2) whole counts; tokens with fewer than four patches are dropped. With falling factorials x^(k),

        (1 − q)²  ←  1 − 2 Σ r^(2)/N^(2) + [(Σ r^(2))² − Σ (r^(2))² + Σ r^(4)]/N^(4)
        C_ii'²    ←  ⟨U_i, U_i'⟩,  U_i = (r rᵀ − diag r)/(N(N − 1))

    Patches of one image share its label, so on images prefer `tcas_fourfold`.

    >>> value, kept = tcas_unbiased([[1, 1, 1], [4, 1, 0], [1, 1, 3]])
    >>> round(value, 12), kept
    (0.21, [1, 2])
    """
    table = as_table(R)
    if not np.array_equal(table, np.rint(table)):
        raise DataError("the unbiased score needs whole counts, not shares")
    kept = np.flatnonzero(table.sum(axis=1) >= MIN_PATCHES)
    if not len(kept):
        raise DataError(f"no token has the {MIN_PATCHES} patches that the unbiased score needs")
    r = table[kept]
    n, pairs, squares = r.sum(axis=1), _falling(r, 2), (r**2).sum(axis=1)
    pair_sum, w = pairs.sum(axis=1), 1 / _falling(n, 2)
    quads = pair_sum**2 - (pairs**2).sum(axis=1) + _falling(r, 4).sum(axis=1)
    diagonal = 1 - 2 * pair_sum / _falling(n, 2) + quads / _falling(n, 4)
    # ⟨U_i, U_i'⟩ = w_i w_i' [⟨r_i, r_i'⟩² − ⟨r_i², r_i'⟩ − ⟨r_i, r_i'²⟩ + ⟨r_i, r_i'⟩]; summed over all i, i' only the
    # first term needs a product of matrices.
    first, second = w @ r, w @ r**2
    everything = gram_sum_sq(np.sqrt(w)[:, None] * r) - 2 * first @ second + first @ first
    same = (w**2 * (squares**2 - 2 * (r**3).sum(axis=1) + squares)).sum()
    return float(np.mean(diagonal) + (everything - same) / len(kept) ** 2), kept.tolist()


def _falling(x: Floats, k: int) -> Floats:
    """x(x − 1)…(x − k + 1), elementwise."""
    product: Floats = np.prod([x - step for step in range(k)], axis=0)
    return product


def tcas_fourfold(R4: Input) -> tuple[float, list[int]]:
    """TCAS and the tokens it rests on, from four disjoint sets of images.

    R4: (4, l1, l2) counts. Only tables of different folds are multiplied, so that no image meets itself and
    the dependence of its patches does no harm. Tokens missing from any fold are dropped. With P_a the
    row-normalised table of fold a and d_ab(i) = ⟨P_a(i), P_b(i)⟩, averaged over the pairings (ab|ce) of the
    folds:

        mean_i (1 − d_ab(i))(1 − d_ce(i))
        + 1/l1² Σ_{i≠i'} ⟨P_a(i), P_b(i')⟩ · (⟨P_c(i), P_e(i')⟩ + ⟨P_e(i), P_c(i')⟩)/2

    Being unbiased it may fall outside the range of TCAS, even below 0. O(l1·l2·min(l1, l2)).
    """
    folds = as_counts(R4, "the four tables", 3)
    if len(folds) != FOLDS:
        raise DataError(f"the four-fold score needs {FOLDS} tables, not {len(folds)}")
    return fourfold(list(folds))


def fourfold(profiles: list[Floats]) -> tuple[float, list[int]]:
    """`tcas_fourfold` of a list of four checked (l1, l2) float64 tables, which is used up to save memory."""
    rows = [fold.sum(axis=1) for fold in profiles]
    kept = np.flatnonzero(np.min(rows, axis=0) > 0)
    if not len(kept):
        raise DataError("no token occurs in all four folds of the images")
    for fold, row in enumerate(rows):
        profiles[fold] = profiles[fold][kept] / row[kept, None]
    d = {(x, y): np.einsum("ij,ij->i", profiles[x], profiles[y]) for x, y in PAIRS}  # d_ab(i)
    by_rows = profiles[0].shape[0] <= profiles[0].shape[1]
    # The sum over all i, i' is ⟨P_a P_bᵀ, P_c P_eᵀ⟩ (l1 × l1), or ⟨P_aᵀ P_c, P_bᵀ P_e⟩ (l2 × l2): the smaller.
    M = {(x, y): profiles[x] @ profiles[y].T if by_rows else profiles[x].T @ profiles[y] for x, y in PAIRS}
    M |= {(y, x): matrix.T for (x, y), matrix in M.items()}
    diagonal = same = everything = 0.0
    for a, b, c, e in PAIRINGS:
        diagonal += float(np.mean((1 - d[a, b]) * (1 - d[c, e])))
        same += float(d[a, b] @ d[c, e])  # the terms i = i'
        terms = M[a, b] * (M[c, e] + M[e, c]) if by_rows else M[a, c] * M[b, e] + M[a, e] * M[b, c]
        everything += np.sum(terms) / 2
    return (diagonal + (float(everything) - same) / len(kept) ** 2) / len(PAIRINGS), kept.tolist()
