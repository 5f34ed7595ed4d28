"""What the charts of a report show: score against accuracy, and training curves.

A chart is a plain dictionary: the names of its axes `x` and `y`, `points` with a title, `lines` through places, and a
`band` of (x, low, high). `charts.js` draws it in the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustermim.errors import RunError
from clustermim.reading import parse_json
from clustermim.reports.records import MEASURES, PretrainRecord, unique
from clustermim.runs import METRICS, read_metrics
from clustermim.scores import SCORES

LEAST = 4  # points for a line with a band: two degrees of freedom are left
WATCHED = {  # what `pretrain --watch` measures, by its name in metrics.jsonl
    f"watch_{name}{end}": f"{title}{pooling}"
    for end, pooling in (("", ""), ("_cls", ", class token"))
    for name, title in (("knn", "kNN"), ("probe", "Quick probe"), ("rankme", "RankMe"), ("lidar", "LiDAR"))
}
CURVE = 150  # points of a training curve

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
    """A chart for each source, score and accuracy that some pretraining on tokens has."""
    groups: dict[tuple[str, str], list[PretrainRecord]] = {}
    for record in records:
        if record.tokenizer is not None and record.tokenizer.scores and record.accuracies:
            sources = record.measured_on or "", record.tokenizer.scored_on or "unknown images"
            groups.setdefault(sources, []).append(record)
    measured = Counter(place for place, _ in groups)
    found = []
    for (place, scored_on), members in groups.items():
        data = place if measured[place] == 1 else f"{place}, scored on {scored_on}"
        found += [_scatter(data, score, measure, members) for measure in MEASURES for score in SCORES]
    return [scatter for scatter in found if scatter.runs]


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


def training_curves(records: Sequence[PretrainRecord]) -> dict[str, dict[str, Any]]:
    """The loss of every run, a chart for each kind of target: their losses have different units."""
    found: dict[str, dict[str, Any]] = {}
    for key, record in enumerate(unique(records)):
        places = read_metric(record.found.folder / METRICS)
        if len(places) > 1:
            chart = found.setdefault(record.target, _chart(f"Loss of predicting {record.target}", "step", "loss"))
            chart["lines"].append(_curve(key, record.title, "loss", places))
    return found


def watch_curves(records: Sequence[PretrainRecord]) -> dict[str, dict[str, Any]]:
    """What `--watch` measured of every run, a chart for each kind of value."""
    found: dict[str, dict[str, Any]] = {}
    for key, record in enumerate(unique(records)):
        for name, title in WATCHED.items():
            places = read_metric(record.found.folder / METRICS, name)
            if len(places) > 1:
                chart = found.setdefault(title, _chart(f"{title} during training", "step", title))
                chart["lines"].append(_curve(key, record.title, title, places))
    return found


def _curve(key: int, title: str, name: str, places: Floats) -> dict[str, Any]:
    last = float(places[-1, 1])
    label = {"run": key, "title": f"{title}: last {name} {last:.4g}", "label": title, "last": last}
    return {"style": "curve", "places": thin(places, CURVE).tolist(), **label}


def read_metric(path: Path, name: str = "loss") -> Floats:
    """Steps and values (n, 2) of metrics.jsonl; lines that have none, or are damaged, are left out."""
    places, lines = [], list[bytes]()
    with suppress(RunError):
        lines = read_metrics(path) if path.is_file() else lines
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            values = parse_json(line)
            places.append((float(values["step"]), float(values[name])))
    found = np.array(places, dtype=np.float64).reshape(-1, 2)
    return found[np.isfinite(found).all(1)]


def thin(points: Floats, count: int) -> Floats:
    """At most so many of points (n, 2), evenly, the first and the last among them."""
    return np.take(points, np.unique(np.linspace(0, len(points) - 1, count).round().astype(int)), axis=0)


def _chart(label: str, x: str, y: str) -> dict[str, Any]:
    return {"x": x, "y": y, "label": label, "points": [], "lines": [], "band": []}
