"""TCAS and its corrected forms, with intervals over images.

Intervals come from a delete-one-group jackknife: images are dealt into groups, and the score is computed again without
each of them. Patches are never resampled, because those of one image share its label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clustermim.count_tables import Floats
from clustermim.errors import DataError
from clustermim.scores.base import Value
from clustermim.scores.collect import Tokens
from clustermim.scores.tcas import FOLDS, VARIANTS, TCASVariant, tcas_fourfold, tcas_of

MIN_GROUPS = 4  # fewer groups give an interval too wide to mean anything
CONFIDENCE = 0.95


def tcas_score(tokens: Tokens) -> float:
    """TCAS as counted, in the variant asked for."""
    return tcas_of(tokens.table(), tokens.variant)


def chance(tokens: Tokens, variant: TCASVariant | None = None) -> float:
    """TCAS of a table with the same margins and no association."""
    table = tokens.table()
    margins = np.outer(table.sum(axis=1), table.sum(axis=0) / table.sum())
    return tcas_of(margins, variant or tokens.variant)


def null_scores(tokens: Tokens) -> Floats:
    """TCAS under each permutation of the image labels."""
    return np.array([tcas_of(tokens.table(permutation=p), tokens.variant) for p in range(len(tokens.shuffles))])


def null(tokens: Tokens) -> float:
    """Mean TCAS under permuted image labels."""
    found = tokens.cached(null_scores)
    return float(found.mean()) if len(found) else math.nan


def adjusted(tokens: Tokens) -> Value:
    """1 − TCAS/null: 0 is no class information, 1 is perfect."""
    permuted = tokens.cached(null_scores)
    if not len(permuted):
        raise DataError("no permuted labels were counted")
    score, middle = tokens.cached(tcas_score), null(tokens)
    if middle <= 0:
        raise DataError("permuted labels score 0 too: one class, or one token, says nothing")
    # The null stays fixed: with fewer images it would shift by the same amount in every replicate.
    variance, freedom = _jackknife(tokens.filled, lambda rest: tcas_of(tokens.table(rest), tokens.variant))
    if len(permuted) > 1:
        variance += (score / middle) ** 2 * float(permuted.var(ddof=1)) / len(permuted)
    return _with_interval(1 - score / middle, variance / middle**2, freedom)


def debiased_kept(tokens: Tokens) -> tuple[float, int]:
    """The four-fold score, and how many tokens occur in all four folds of the images."""
    value, kept = _fourfold(tokens, tokens.filled)
    return value, len(kept)


def debiased(tokens: Tokens) -> Value:
    """TCAS that multiplies counts of different images only, from plain frequencies."""
    value, _ = tokens.cached(debiased_kept)
    try:
        found = _jackknife(tokens.filled, lambda rest: _fourfold(tokens, rest)[0])
    except DataError as error:
        return Value(value, note=f"without one group of images, {error}")
    return _with_interval(value, *found)


def table_facts(tokens: Tokens) -> dict[str, Any]:
    """What else the table gives: chance for `debiased`, its tokens, and TCAS in every variant of the paper's text."""
    try:
        kept = tokens.cached(debiased_kept)[1]
    except DataError:
        kept = 0
    return {
        "plain_chance": chance(tokens, TCASVariant()),
        "debiased_kept": kept,
        "variant": str(tokens.variant),
        "variants": {name: tcas_of(tokens.table(), variant) for name, variant in VARIANTS.items()},
    }


def _fourfold(tokens: Tokens, groups: Sequence[int]) -> tuple[float, list[int]]:
    """Group g belongs to fold g mod 4."""
    return tcas_fourfold(tokens.table([g for g in groups if g % FOLDS == fold]) for fold in range(FOLDS))


def _jackknife(filled: Sequence[int], score: Callable[[list[int]], float]) -> tuple[float, int]:
    """Variance (G − 1)/G Σ (t_g − mean)² of t_g = score(all groups but g), and its degrees of freedom."""
    if len(filled) < MIN_GROUPS:
        return math.nan, len(filled) - 1
    scores = [score([other for other in filled if other != group]) for group in filled]
    return (len(filled) - 1) * float(np.var(scores)), len(filled) - 1


def _with_interval(value: float, variance: float, freedom: int) -> Value:
    """95 % of Student's t with so many degrees of freedom."""
    if math.isnan(variance):
        return Value(value, note=f"fewer than {MIN_GROUPS} groups hold images")
    from scipy.special import stdtrit  # slow to import

    half_width = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Value(value, value - half_width, value + half_width)
