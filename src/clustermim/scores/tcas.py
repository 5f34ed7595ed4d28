"""Token-class alignment similarity (the paper's section 3.1): how well tokens and classes coincide.

Lower is better, although the name says similarity: 0 means that every used token is a class of its own. The
paper's words and formula allow several readings (docs/theory.md#tcas). The default is plain frequencies, C_ii as
defined, unused tokens dropped.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from clustermim.count_tables import Floats, Input, as_table, to_array
from clustermim.errors import ConfigError, DataError
from clustermim.options import flat

Norm = Literal["plain", "softmax"]
Diag = Literal["C", "norm"]
Empty = Literal["drop", "zero", "uniform"]

FOLDS = 4
# The three ways to split four folds into two pairs.
PAIRINGS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
PAIRS = tuple(combinations(range(FOLDS), 2))


@dataclass(frozen=True)
class TCASVariant:
    """One way to read the formula of the paper (docs/theory.md#tcas).

    Args:
        norm: class shares f of a token as they are, or softmax(f / tau) as the paper's text says.
        diag: the diagonal term is 1 − C_ii as the paper defines it (C), or 1 − ‖R̄(i)‖ as its equation prints (norm).
        tau: temperature of the softmax.
        empty: a token that never occurs is left out (drop), has an all-zero row (zero) or an even one (uniform).
    """

    norm: Norm = "plain"
    diag: Diag = "C"
    tau: float = 1.0
    empty: Empty = "drop"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ConfigError(f"tau must be a positive number, not {self.tau}")

    def __str__(self) -> str:
        tau = f", tau={self.tau:g}" if self.norm == "softmax" else ""
        return f"{self.norm}, diag={self.diag}{tau}, empty={self.empty}"


# What the paper can have meant: "softmax" in its text or plain shares, C_ii as defined or the norm that is printed.
VARIANTS = {
    "plain_C": TCASVariant(),
    "plain_norm": TCASVariant(diag="norm"),
    "softmax_C": TCASVariant("softmax"),
    "softmax_norm": TCASVariant("softmax", "norm"),
}


@flat
def tcas(R: Input, *, variant: TCASVariant = TCASVariant()) -> float:
    """TCAS of a tokens × classes count table.

    R: (l1, l2) counts. With the rows of R̄ the profiles of the tokens and C = R̄ R̄ᵀ,

        TCAS = 1/l1 Σ_i (1 − C_ii)² + 1/l1² Σ_{i≠i'} C_ii'²

    (the paper's section 3.1). The second sum is ‖R̄ᵀR̄‖_F² − Σ C_ii², so that a codebook of thousands of tokens costs
    O(l1·l2·min(l1, l2)) and no more memory than the table. See `TCASVariant` for the options. Softmax at temperature 1
    or above warns: its values can hardly differ from one tokenizer to another.

    >>> tcas([[5, 0, 0], [0, 7, 0], [0, 0, 2]])
    0.0
    >>> tcas([[4, 0, 0], [4, 0, 0], [4, 0, 0], [4, 0, 0]])
    0.75
    """
    table = as_table(R)
    warn_if_flat(variant)
    return tcas_of(table, variant)


def tcas_of(table: Floats, variant: TCASVariant) -> float:
    """TCAS of a checked (l1, l2) float64 table with a positive total, without checks or warnings."""
    profiles = token_profiles(table, variant)
    l1 = len(profiles)
    purity = np.einsum("ij,ij->i", profiles, profiles)  # C_ii, (l1,)
    inner = purity if variant.diag == "C" else np.sqrt(purity)
    # ‖R̄ R̄ᵀ‖_F² = ‖R̄ᵀ R̄‖_F², of which the smaller is computed.
    gram = profiles @ profiles.T if l1 <= profiles.shape[1] else profiles.T @ profiles
    # Rounding may leave the difference of two equal sums a hair below 0.
    off_diagonal = max(float(np.vdot(gram, gram)) - float(purity @ purity), 0.0)
    return float(np.mean((1 - inner) ** 2)) + off_diagonal / l1**2


def token_profiles(table: Floats, variant: TCASVariant) -> Floats:
    """R̄: one row of class shares for each token that the variant keeps."""
    rows = table.sum(axis=1)
    seen = rows > 0
    shares: Floats = table[seen] / rows[seen, None]
    if variant.norm == "softmax":
        shares = np.exp((shares - shares.max(axis=1, keepdims=True)) / variant.tau)
        shares /= shares.sum(axis=1, keepdims=True)
    if variant.empty == "drop" or seen.all():
        return shares
    profiles = np.full(table.shape, 0.0 if variant.empty == "zero" else 1 / table.shape[1])
    profiles[seen] = shares
    return profiles


def warn_if_flat(variant: TCASVariant) -> None:
    """Say how little softmax can move when its temperature is that of the paper's text."""
    if variant.norm == "softmax" and variant.tau >= 1:
        warnings.warn(
            f"softmax at temperature {variant.tau:g} gives all tokenizers nearly the same value (docs/theory.md#tcas); "
            "norm='plain' uses the whole scale",
            stacklevel=4,
        )


def tcas_fourfold(tables: Iterable[Input]) -> tuple[float, list[int]]:
    """TCAS from plain frequencies with C_ii, and the tokens it rests on, from four disjoint sets of images.

    tables: four of (l1, l2) counts. Only tables of different folds are multiplied, so that no image meets itself and
    the dependence of its patches does no harm. Tokens missing from any fold are dropped. With P_a the
    row-normalised table of fold a and d_ab(i) = ⟨P_a(i), P_b(i)⟩, averaged over the pairings (ab|ce) of the
    folds:

        mean_i (1 − d_ab(i))(1 − d_ce(i))
        + 1/l1² Σ_{i≠i'} ⟨P_a(i), P_b(i')⟩ · (⟨P_c(i), P_e(i')⟩ + ⟨P_e(i), P_c(i')⟩)/2

    A token seen once looks pure, whatever it means: with N_i patches the plug-in purity is too large by (1 − q_i)/N_i
    on average, so large codebooks look better than they are (docs/theory.md#few-patches-a-token). Being unbiased this
    may fall outside the range of TCAS, even below 0. O(l1·l2·min(l1, l2)).

    >>> tcas_fourfold([[[3, 0], [0, 2]]] * 4)
    (0.0, [0, 1])
    """
    profiles = [to_array(table, "the tables of the folds") for table in tables]
    if len(profiles) != FOLDS:
        raise DataError(f"the four-fold score needs {FOLDS} tables, not {len(profiles)}")
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
