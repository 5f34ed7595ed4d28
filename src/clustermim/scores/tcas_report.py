"""Everything the count tables say about a tokenizer, with intervals over images.

Intervals come from a delete-one-group jackknife: images are dealt into G groups, and the score is computed
again without each of them. Patches are never resampled, because those of one image share its label.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from clustermim.count_tables import Floats, Input, check_counts, table_summary, to_array
from clustermim.errors import ConfigError, DataError
from clustermim.scores.codebook import nmi, perplexity
from clustermim.scores.debiased import FOLDS, fourfold
from clustermim.scores.spectral import class_level
from clustermim.scores.tcas import VARIANTS, Diag, Empty, Norm, TCASVariant, score_table, tcas_adjusted, warn_if_flat

CONFIDENCE = 0.95
MIN_GROUPS = 4  # fewer groups give an interval too wide to mean anything


class TCASReport(TypedDict):
    """What `assess` returns. A score that cannot be computed is NaN, and `notes` says why under its name."""

    tcas: float  # in the reading asked for; lower is better
    null: float  # mean TCAS under permuted image labels
    chance: float  # TCAS of a table with these margins and no association
    plain_chance: float  # the same in the plain reading, which is that of `debiased`
    adjusted: float  # 1 − tcas/null: 0 is no class information, 1 is perfect
    adjusted_low: float
    adjusted_high: float
    debiased: float  # four-fold score, plain reading
    debiased_low: float
    debiased_high: float
    debiased_kept: int  # tokens that occur in all four folds
    alpha: float  # label term of the bound
    class_sum_sq: float  # lower bound of Σλ², the spectral term
    nmi: float
    perplexity: float
    used: int
    vocab_size: int
    min_count: float  # patches of the rarest used token
    variant: str
    readings: dict[str, float]  # TCAS in every reading of the paper's text and formula
    notes: dict[str, str]


def assess(
    counts: Input,
    null_counts: Input | None = None,
    norm: Norm = "plain",
    diag: Diag = "C",
    tau: float = 1.0,
    empty: Empty = "drop",
) -> TCASReport:
    """Every score of a tokenizer from its count tables.

    counts: (G, l, c), one tokens × classes table for each of G groups of images, G divisible by four; group g
    belongs to fold g mod 4 of the debiased score. null_counts: (P, l, c), the whole table under each of P
    permutations of the image labels. Intervals: 95 %, Student t with one degree of freedom less than groups.
    """
    variant = TCASVariant(norm, diag, tau, empty).check()
    groups = to_array(counts, "the group tables")
    check_counts(groups, "the group tables", 3)
    if len(groups) % FOLDS:
        raise ConfigError(f"the number of groups must be divisible by {FOLDS}, not {len(groups)}")
    table: Floats = groups.sum(axis=0, dtype=np.float64)
    warn_if_flat(variant, table)
    summary = table_summary(table)
    margins = np.outer(table.sum(axis=1), table.sum(axis=0) / table.sum())
    alpha, class_sum_sq = class_level(table)
    result = TCASReport(
        tcas=score_table(table, variant), null=math.nan, chance=score_table(margins, variant),
        plain_chance=score_table(margins, TCASVariant()),
        adjusted=math.nan, adjusted_low=math.nan, adjusted_high=math.nan,
        debiased=math.nan, debiased_low=math.nan, debiased_high=math.nan, debiased_kept=0,
        alpha=alpha, class_sum_sq=class_sum_sq, nmi=nmi(table), perplexity=perplexity(table.sum(axis=1)),
        used=summary.used, vocab_size=len(table), min_count=summary.min_count,
        variant=str(variant), readings={name: score_table(table, each) for name, each in VARIANTS.items()}, notes={},
    )  # fmt: skip
    _add_adjusted(result, groups, table, _null_scores(null_counts, table, variant), variant)
    _add_debiased(result, groups)
    return result


def _null_scores(null_counts: Input | None, table: Floats, variant: TCASVariant) -> Floats:
    """TCAS of each permuted table; none if no permutation was counted."""
    null: NDArray[Any] = np.empty(0) if null_counts is None else to_array(null_counts, "the permuted tables")
    if null.size == 0 or not null.any():
        return np.empty(0)
    check_counts(null, "the permuted tables", 3)
    if null.shape[1:] != table.shape:
        raise DataError(f"the permuted tables are {null.shape[1:]} but the group tables {table.shape}")
    if (null.sum(axis=2, dtype=np.float64) != table.sum(axis=1)).any():
        raise DataError("the permuted tables must count the same patches as the group tables")
    return np.array([score_table(permuted.astype(np.float64), variant) for permuted in null])


def _add_adjusted(
    result: TCASReport, groups: NDArray[Any], table: Floats, null_scores: Floats, variant: TCASVariant
) -> None:
    """Fill in null, adjusted and its interval."""
    if not len(null_scores):
        result["notes"]["adjusted"] = "no permuted labels were counted"
        return
    null = result["null"] = float(null_scores.mean())
    if null <= 0:
        result["notes"]["adjusted"] = "permuted labels score 0 too: one class, or one token, tells nothing"
        return
    result["adjusted"] = tcas_adjusted(result["tcas"], null)
    # The null stays fixed: with fewer images it would shift by the same amount in every replicate.
    variance, freedom = _jackknife(groups, lambda _, group: score_table(table - group, variant))
    if len(null_scores) > 1:
        variance += (result["tcas"] / null) ** 2 * float(null_scores.var(ddof=1)) / len(null_scores)
    half_width = _half_width(variance / null**2, freedom)
    result["adjusted_low"], result["adjusted_high"] = result["adjusted"] - half_width, result["adjusted"] + half_width
    if math.isnan(half_width):
        result["notes"]["adjusted_interval"] = f"fewer than {MIN_GROUPS} groups hold images"


def _add_debiased(result: TCASReport, groups: NDArray[Any]) -> None:
    """Fill in the four-fold score and its interval."""
    folds: list[Floats] = [groups[a::FOLDS].sum(axis=0, dtype=np.float64) for a in range(FOLDS)]

    def without(index: int, group: Floats) -> float:
        a = index % FOLDS
        return fourfold([*folds[:a], folds[a] - group, *folds[a + 1 :]])[0]

    try:
        result["debiased"], kept = fourfold(folds)
    except DataError as error:
        result["notes"]["debiased"] = str(error)
        return
    result["debiased_kept"] = len(kept)
    try:
        half_width = _half_width(*_jackknife(groups, without))
    except DataError as error:
        result["notes"]["debiased_interval"] = f"without one group of images, {error}"
        return
    result["debiased_low"], result["debiased_high"] = result["debiased"] - half_width, result["debiased"] + half_width


def _jackknife(groups: NDArray[Any], without: Callable[[int, Floats], float]) -> tuple[float, int]:
    """Variance (G − 1)/G Σ (t_g − mean)² over the non-empty groups, and its degrees of freedom.

    without(g, table of group g) is the score of all images but those of group g.
    """
    filled = [g for g in range(len(groups)) if groups[g].any()]
    if len(filled) < MIN_GROUPS:
        return math.nan, len(filled) - 1
    scores = [without(g, groups[g].astype(np.float64)) for g in filled]
    return (len(filled) - 1) * float(np.var(scores)), len(filled) - 1


def _half_width(variance: float, freedom: int) -> float:
    """Half the width of the interval."""
    if math.isnan(variance):
        return math.nan
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
