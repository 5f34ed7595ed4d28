"""Do scores that are known before a training tell what it gives? Correlations between the columns of a study's table.

    table:
      correlations:
        of: [linear probe, kNN]                             # what training gave
        with: [debiased TCAS, kinship]                      # what was known before
        families: {pixels: ["K = 10", "K = 50", "K = 100"]}   # rows, to look within as well

Intervals are 95 %: Fisher's for Pearson's r, Bonett and Wright's for Spearman's, Fieller's for Kendall's. They take
rows for independent draws, which tokenizers of one family are not quite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from clustermim.errors import ConfigError, did_you_mean
from clustermim.studies.description import Study, check_keys
from clustermim.studies.table import Row, columns, selections

Floats = NDArray[np.float64]

FEWEST = 4  # rows, below which a correlation says nothing
ROUNDING = 1e-12  # of a coefficient: one that is so near to 1 is 1, and has no interval


class Correlation(NamedTuple):
    """One coefficient over n rows, with its interval where there is one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:+.2f}"
        return f"{self.value:+.2f} ({self.low:+.2f} … {self.high:+.2f})"


class Correlations(NamedTuple):
    """How a score goes with an outcome over some rows."""

    rows: int
    pearson: Correlation
    spearman: Correlation
    kendall: Correlation


class Panel(NamedTuple):
    """All scores against one outcome, over some rows."""

    outcome: str
    family: str | None  # None: all rows
    scores: dict[str, Correlations]


def correlate(scores: Sequence[float], outcomes: Sequence[float]) -> Correlations | None:
    """The three coefficients of pairs of numbers; None for fewer than four, or when all of one side are equal."""
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    n = len(x)
    if n < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    r, rho, tau = (float(f(x, y).statistic) for f in (stats.pearsonr, stats.spearmanr, stats.kendalltau))
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
    middle, half_width = math.atanh(value), float(stats.norm.ppf(0.975)) * math.sqrt(variance)
    return Correlation(value, math.tanh(middle - half_width), math.tanh(middle + half_width))


def panels(study: Study, rows: Sequence[Row]) -> Iterator[Panel]:
    """What the table's `correlations` ask for: every outcome over all rows, then within each family."""
    asked = _asked(study)
    families: dict[str | None, list[Row]] = {None: list(rows)}
    for name, members in asked["families"].items():
        families[name] = [row for row in rows if row.name in members]
    for outcome in asked["of"]:
        for family, members in families.items():
            found = {score: _over(members, score, outcome) for score in asked["with"]}
            scores = {score: value for score, value in found.items() if value is not None}
            if scores:
                yield Panel(outcome, family, scores)


def _over(rows: Sequence[Row], score: str, outcome: str) -> Correlations | None:
    """Over the rows that have both; means over seeds."""
    pairs = [(row.estimate(score), row.estimate(outcome)) for row in rows]
    known = [(x.mean, y.mean) for x, y in pairs if x is not None and y is not None]
    return correlate([x for x, _ in known], [y for _, y in known])


def _asked(study: Study) -> dict[str, Any]:
    """The description of the correlations; nothing is asked for where there is none."""
    asked = study.table.get("correlations") or {}
    return {"of": [], "with": [], "families": {}} | {key: value for key, value in asked.items() if value}


def check_correlations(study: Study) -> None:
    """Refuse correlations of columns or rows that are not there."""
    where = f"the correlations of {study.name}"
    check_keys(study.table.get("correlations") or {}, ("of", "with", "families"), where)
    asked, rows = _asked(study), selections(study)
    families = check_keys(asked["families"], None, f"families of {where}")
    for words in (asked["of"], asked["with"], *families.values()):
        if not isinstance(words, list):
            raise ConfigError(f"{where}: expected a list of names, not {words!r}")
    for name in [*asked["of"], *asked["with"]]:
        if name not in columns(study):
            raise ConfigError(f"{where} name {name!r}, which is not a column{did_you_mean(str(name), columns(study))}")
    for family, members in families.items():
        for name in members:
            if name not in rows:
                raise ConfigError(
                    f"{where}: {family} names {name!r}, which is not a row{did_you_mean(str(name), rows)}"
                )
