"""Do scores that are known before a training predict what it gives? Correlations between the columns of a table.

    table:
      correlations:
        of: [linear probe, kNN]                             # what training gave
        with: [debiased TCAS, transferability]              # what was known before
        families: {pixels: ["K = 10", "K = 50", "K = 100"]}   # rows, to look within as well
        kinds: {pixels: ["K = 10", "K = 50", "K = 100"]}      # rows that are no independent draws

Intervals are 95 %: Fisher's for Pearson's r, Bonett and Wright's for Spearman's, Fieller's for Kendall's. They take
rows for independent draws. Where `kinds` says which are not, only Spearman's has an interval, of 2,000 bootstrap
samples that draw each kind as a whole. A row that no kind names is a kind of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustermim.results import Table
from clustermim.studies.description import Study
from clustermim.studies.table import Row, correlations

FEWEST = 4  # rows, below which a correlation says nothing
COLUMNS = ("", "rows", "Pearson", "Spearman", "Kendall")
ROUNDING = 1e-12  # of a coefficient: one that is so near to 1 is 1, and has no interval
DRAWS = 2000  # bootstrap samples

FloatArray = npt.NDArray[np.float64]


class Correlation(NamedTuple):
    """One coefficient, with its interval where there is one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" ({self.low:+.2f} … {self.high:+.2f})"
        return f"{self.value:+.2f}{interval}"


class Correlations(NamedTuple):
    """How a score goes with an outcome over some rows."""

    rows: int
    pearson: Correlation
    spearman: Correlation
    kendall: Correlation


def correlate(
    scores: Sequence[float], outcomes: Sequence[float], kinds: Sequence[str] | None = None
) -> Correlations | None:
    """The three coefficients of pairs of numbers; None for fewer than four, or when all of one side are equal.

    With the kind of each pair, the interval of Spearman's draws kinds as wholes, and the others have none.
    """
    from scipy import stats  # slow to import

    x, y = np.asarray(scores, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    n = len(x)
    if n < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    r, rho, tau = (float(f(x, y).statistic) for f in (stats.pearsonr, stats.spearmanr, stats.kendalltau))
    if kinds is not None:
        alone = [Correlation(value, math.nan, math.nan) for value in (r, tau)]
        return Correlations(n, alone[0], _resampled(rho, x, y, kinds), alone[1])
    return Correlations(
        n,
        _with_interval(r, 1 / (n - 3)),
        _with_interval(rho, (1 + rho**2 / 2) / (n - 3)),
        _with_interval(tau, 0.437 / (n - 4) if n > 4 else math.inf),
    )


def _with_interval(value: float, variance: float) -> Correlation:
    """A coefficient whose inverse hyperbolic tangent is about normal, of that variance."""
    value = min(1.0, max(-1.0, value))
    if abs(value) > 1 - ROUNDING or math.isinf(variance):
        return Correlation(value, math.nan, math.nan)
    middle, half_width = math.atanh(value), NormalDist().inv_cdf(0.975) * math.sqrt(variance)
    return Correlation(value, math.tanh(middle - half_width), math.tanh(middle + half_width))


def _resampled(rho: float, x: FloatArray, y: FloatArray, kinds: Sequence[str]) -> Correlation:
    """Spearman's coefficient and the middle 95 % of those of samples of kinds; fewer than four kinds have none."""
    names, kind = np.unique(np.asarray(kinds), return_inverse=True)
    if len(names) < FEWEST or abs(rho) > 1 - ROUNDING:
        return Correlation(rho, math.nan, math.nan)
    often = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    weights = often[:, kind].astype(np.float64)  # (draws, rows): how often a row is in a sample
    a, b = (weights @ (np.less.outer(v, v) + np.equal.outer(v, v) / 2) for v in (x, y))  # its rank there
    shares = weights / weights.sum(1, keepdims=True)
    a, b = (ranks - (shares * ranks).sum(1, keepdims=True) for ranks in (a, b))
    with np.errstate(invalid="ignore"):  # a sample of one kind may have no variance
        found = (shares * a * b).sum(1) / np.sqrt((shares * a * a).sum(1) * (shares * b * b).sum(1))
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return Correlation(rho, float(low), float(high))


def kinds_of(study: Study, rows: Sequence[Row]) -> list[str] | None:
    """The kind of each row; None where a table's `correlations` name no kinds."""
    kind = {row: name for name, members in correlations(study)["kinds"].items() for row in members}
    return [kind.get(row.name, row.name) for row in rows] if kind else None


def families(study: Study, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All rows, and those of each family that a table's `correlations` name."""
    found = {"all rows": list(rows)}
    for name, members in correlations(study)["families"].items():
        found[f"within {name}"] = [row for row in rows if row.name in members]
    return found


def correlate_columns(study: Study, rows: Sequence[Row], score: str, outcome: str) -> Correlations | None:
    """How two columns go together over the rows that have both, each with its mean over seeds."""
    pairs = [(row, row.estimate(score), row.estimate(outcome)) for row in rows]
    known = [(row, x.mean, y.mean) for row, x, y in pairs if x is not None and y is not None]
    kinds = kinds_of(study, [row for row, _, _ in known])
    return correlate([x for _, x, _ in known], [y for _, _, y in known], kinds)


def correlation_tables(study: Study, rows: Sequence[Row]) -> Iterator[Table]:
    """What a table's `correlations` ask for: each outcome over all rows, then within each family; strongest first."""
    asked = correlations(study)
    for outcome in asked["of"]:
        for family, members in families(study, rows).items():
            found: dict[str, Correlations] = {}
            for score in asked["with"]:
                if correlated := correlate_columns(study, members, score, outcome):
                    found[score] = correlated
            ordered = sorted(found.items(), key=lambda item: -abs(item[1].spearman.value))
            lines = [[score, str(one.rows), *map(str, one[1:])] for score, one in ordered]
            if lines:
                yield Table(f"Correlation with {outcome}, {family}", COLUMNS, lines)
