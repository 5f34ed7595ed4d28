"""Score against accuracy: what the charts of a report show.

A chart is a plain dictionary: the names of its axes `x` and `y`, `points` with a title, `lines` through places, and a
`band` of (x, low, high). `charts.js` draws it in the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustermim.reports.ranking import ORDER
from clustermim.reports.records import MEASURES, PretrainRecord

LEAST = 4  # points for a line with a band: two degrees of freedom are left

Floats = NDArray[np.float64]


def fit_line(x: Sequence[float], y: Sequence[float], places: int = 25) -> tuple[Floats, float] | None:
    """Least squares, ŷ ± t·s·√(1/n + (x−x̄)²/Σ(x−x̄)²), and Pearson's r; None for fewer than four points or one x or y.

    The line has (places, 4) values: x, low, ŷ and high, the ends of the 95 % interval of its mean.
    """
    from scipy.stats import linregress, t

    if len(x) < LEAST or min(x) == max(x) or min(y) == max(y):
        return None
    line, at = linregress(x, y), np.linspace(min(x), max(x), places)
    middle = line.intercept + line.slope * at
    # The slope's standard error is s/√Σ(x−x̄)², so s²/n is its square times the variance of x.
    half_width = t.ppf(0.975, len(x) - 2) * line.stderr * np.sqrt(np.var(x) + (at - np.mean(x)) ** 2)
    return np.stack([at, middle - half_width, middle, middle + half_width], axis=1), float(line.rvalue)


class Scatter(NamedTuple):
    """A score on one source against an accuracy on one source."""

    data: str  # both sources, in words
    score: str  # names of SCORES and keys of MEASURES
    measure: str
    chart: dict[str, Any]
    tokenizers: int
    runs: int
    r: float | None  # over tokenizers, of whose runs the mean counts


def scatters(records: Sequence[PretrainRecord]) -> list[Scatter]:
    """A chart for each source, score and accuracy that encoders of two tokenizers have; what predicts comes first."""
    groups: dict[tuple[str, str], list[PretrainRecord]] = {}
    for record in records:
        if record.tokenizer is not None and record.tokenizer.scores and record.accuracies:
            sources = record.measured_on or "", record.tokenizer.scored_on or "unknown images"
            groups.setdefault(sources, []).append(record)
    measured = Counter(place for place, _ in groups)
    found = []
    for (place, scored_on), members in groups.items():
        data = place if measured[place] == 1 else f"{place}, scored on {scored_on}"
        found += [_scatter(data, score, measure, members) for score in ORDER for measure in MEASURES]
    return [scatter for scatter in found if scatter.tokenizers > 1]


def _scatter(data: str, score: str, measure: str, records: Sequence[PretrainRecord]) -> Scatter:
    runs: dict[str, list[tuple[float, float]]] = {}  # of each tokenizer: seeds are not independent of each other
    chart = _chart(f"{score} against {MEASURES[measure]}", score, f"{MEASURES[measure]}, %")
    for record in records:
        if (of := record.tokenizer) and score in of.scores and measure in record.accuracies:
            x, (y, low, high) = of.scores[score].value, record.accuracies[measure]
            runs.setdefault(of.title, []).append((x, y))
            title = f"{record.title}: {score} {x:.4g}, {MEASURES[measure]} {y:.1f} %"
            chart["points"].append({"x": x, "y": y, "low": low, "high": high, "title": title, "group": of.title})
    x_means, y_means = np.array([np.mean(pairs, axis=0) for pairs in runs.values()]).reshape(-1, 2).T.tolist()
    fit = fit_line(x_means, y_means)
    if fit is not None:
        chart["band"] = fit[0][:, [0, 1, 3]].tolist()
        chart["lines"] = [{"style": "fit", "places": fit[0][[0, -1]][:, [0, 2]].tolist()}]
    return Scatter(data, score, measure, chart, len(runs), len(chart["points"]), fit and fit[1])


def _chart(label: str, x: str, y: str) -> dict[str, Any]:
    return {"x": x, "y": y, "label": label, "points": [], "lines": [], "band": []}
