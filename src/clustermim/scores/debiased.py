"""TCAS without the bias of small counts: a token seen once looks pure, whatever it means.

With N_i patches the plug-in purity is too large by (1 − q_i)/N_i on average, so large codebooks look better
than they are (docs/theory.md#few-patches-a-token). Both functions estimate TCAS from plain frequencies with C_ii.
"""

from __future__ import annotations

import numpy as np

from clustermim.count_tables import Floats, Input, as_counts, as_table, gram_sum_sq
from clustermim.errors import DataError

FOLDS = 4
# The three ways to split four folds into two pairs.
PAIRINGS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
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
    n = r.sum(axis=1)
    off_diagonal = _off_diagonal_unbiased(r, 1 / _falling(n, 2))
    value = float(np.mean(_diagonal_unbiased(r, n))) + off_diagonal / len(kept) ** 2
    return value, kept.tolist()


def _falling(x: Floats, k: int) -> Floats:
    """x(x − 1)…(x − k + 1), elementwise."""
    product = x.copy()
    for step in range(1, k):
        product *= x - step
    return product


def _diagonal_unbiased(r: Floats, n: Floats) -> Floats:
    """Unbiased (1 − q_i)² of every row of r; n holds the row sums."""
    pairs = _falling(r, 2)
    pair_sum = pairs.sum(axis=1)
    quads = pair_sum**2 - (pairs**2).sum(axis=1) + _falling(r, 4).sum(axis=1)
    estimate: Floats = 1 - 2 * pair_sum / _falling(n, 2) + quads / _falling(n, 4)
    return estimate


def _off_diagonal_unbiased(r: Floats, w: Floats) -> float:
    """Σ_{i≠i'} ⟨U_i, U_i'⟩ for U_i = w_i (r_i r_iᵀ − diag r_i).

    Written out, ⟨U_i, U_i'⟩ = w_i w_i' [⟨r_i, r_i'⟩² − ⟨r_i², r_i'⟩ − ⟨r_i, r_i'²⟩ + ⟨r_i, r_i'⟩]; summed
    over all i, i' only the first term needs a product of matrices.
    """
    first, second = w @ r, w @ r**2
    everything = gram_sum_sq(np.sqrt(w)[:, None] * r) - 2 * first @ second + first @ first
    squares = (r**2).sum(axis=1)
    same = (w**2 * (squares**2 - 2 * (r**3).sum(axis=1) + squares)).sum()
    return float(everything - same)


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
    diagonal = 0.0
    same = 0.0  # the terms i = i' that the products of whole tables contain
    for a, b, c, e in PAIRINGS:
        d_ab = np.einsum("ij,ij->i", profiles[a], profiles[b])
        d_ce = np.einsum("ij,ij->i", profiles[c], profiles[e])
        diagonal += float(np.mean((1 - d_ab) * (1 - d_ce)))
        same += float(d_ab @ d_ce)
    off_diagonal = _all_pairs_fourfold(profiles) - same
    return (diagonal + off_diagonal / len(kept) ** 2) / len(PAIRINGS), kept.tolist()


def _all_pairs_fourfold(profiles: list[Floats]) -> float:
    """Σ over pairings and all i, i' of ⟨P_a(i), P_b(i')⟩ · (⟨P_c(i), P_e(i')⟩ + ⟨P_e(i), P_c(i')⟩)/2.

    The sum over i, i' is ⟨P_a P_bᵀ, P_c P_eᵀ⟩ (l1 × l1), or ⟨P_aᵀ P_c, P_bᵀ P_e⟩ (l2 × l2): whichever is
    smaller.
    """
    tokens, classes = profiles[0].shape
    rows = tokens <= classes
    # Each product serves several pairings; the product of (y, x) is the transpose of that of (x, y).
    product = {
        (x, y): profiles[x] @ profiles[y].T if rows else profiles[x].T @ profiles[y]
        for x in range(FOLDS)
        for y in range(x + 1, FOLDS)
    }
    product |= {(y, x): matrix.T for (x, y), matrix in product.items()}
    total = 0.0
    for a, b, c, e in PAIRINGS:
        if rows:
            total += np.sum(product[a, b] * (product[c, e] + product[e, c])) / 2
        else:
            total += np.sum(product[a, c] * product[b, e] + product[a, e] * product[b, c]) / 2
    return float(total)
