"""What the charts of a report show: score against accuracy, the plane of the bound, training curves, use of tokens.

A chart is a plain dictionary: the names of its axes `x` and `y`, `points` with a title, `lines` through places, and a
`band` of (x, low, high). `charts.js` draws it in the page.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustermim.reports.records import MEASURES, Measurement, PretrainRecord, TokenizerRecord, as_float, unique
from clustermim.runs import METRICS
from clustermim.scores import SCORES
from clustermim.theory import winning_interval

LEAST = 4  # points for a line with a band: two degrees of freedom are left
CURVE = 150  # points of a training curve
BARS = 120  # of the use of a codebook
ORACLE = "labels"  # the kind of tokenizer that is told the classes

Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """A line through points, with the 95 % interval of its mean."""

    x: Floats  # (n,) places at which it is drawn
    middle: Floats
    low: Floats
    high: Floats
    r: float  # Pearson's


def fit_line(x: Sequence[float], y: Sequence[float], places: int = 25) -> Fit | None:
    """Least squares, ŷ ± t·s·√(1/n + (x−x̄)²/Σ(x−x̄)²); None for fewer than four points or one x or y only."""
    from scipy.stats import linregress, t

    if len(x) < LEAST or min(x) == max(x) or min(y) == max(y):
        return None
    line, at, center = linregress(x, y), np.linspace(min(x), max(x), places), float(np.mean(x))
    middle = line.intercept + line.slope * at
    # The slope's standard error is s/√Σ(x−x̄)², so s²/n is its square times the variance of x.
    error = line.stderr * np.sqrt(np.var(x) + (at - center) ** 2)
    half_width = t.ppf(0.975, len(x) - 2) * error
    return Fit(at, middle, middle - half_width, middle + half_width, float(line.rvalue))


class Scatter(NamedTuple):
    """A score on one source against an accuracy on one source."""

    measured_on: str
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
        for measure in MEASURES:
            for score in SCORES:
                chosen = [
                    (record.title, record.tokenizer.title, record.tokenizer.scores[score], record.accuracies[measure])
                    for record in members
                    if record.tokenizer and score in record.tokenizer.scores and measure in record.accuracies
                ]
                if chosen:
                    found.append(_scatter((place, data), score, measure, chosen))
    return found


def _scatter(
    sources: tuple[str, str], score: str, measure: str, chosen: Sequence[tuple[str, str, Measurement, Measurement]]
) -> Scatter:
    runs: dict[str, list[tuple[float, float]]] = {}  # of each tokenizer: seeds are not independent of each other
    chart = _chart(f"{score} against {MEASURES[measure]}", score, f"{MEASURES[measure]}, %")
    for title, tokenizer, at, (value, low, high) in chosen:
        runs.setdefault(tokenizer, []).append((at.value, value))
        text = f"{title}: {score} {at.value:.4g}, {MEASURES[measure]} {value:.1f} %"
        chart["points"].append({**_point(at.value, value, text, tokenizer), "low": low, "high": high})
    fit = fit_line(*np.array([np.mean(pairs, axis=0) for pairs in runs.values()]).T.tolist())
    if fit is not None:
        chart["band"] = np.stack([fit.x, fit.low, fit.high], axis=1).tolist()
        chart["lines"] = [{"style": "fit", "places": np.stack([fit.x, fit.middle], axis=1)[[0, -1]].tolist()}]
    return Scatter(*sources, score, measure, chart, len(runs), len(chosen), None if fit is None else fit.r)


class Plane(NamedTuple):
    """Tokenizers that were scored on one source, by the two terms of the bound Σλ² + r·α, with their lower envelope."""

    data: str
    chart: dict[str, Any]
    winners: list[tuple[TokenizerRecord, tuple[float, float] | None]]  # the ratios r at which each is the lowest


def planes(records: Sequence[TokenizerRecord]) -> list[Plane]:
    """A plane for each source on which two tokenizers or more were scored; the labels are no choice of a tokenizer."""
    groups: dict[str, list[TokenizerRecord]] = {}
    for record in records:
        if record.kind != ORACLE and record.scored_on and {"sum_sq", "alpha"} <= record.scores.keys():
            groups.setdefault(record.scored_on, []).append(record)
    return [_plane(data, group) for data, group in groups.items() if len(group) > 1]


def _plane(data: str, records: Sequence[TokenizerRecord]) -> Plane:
    spectral, error = ([record.scores[name].value for record in records] for name in ("sum_sq", "alpha"))
    winners = [(record, winning_interval(spectral, error, i)) for i, record in enumerate(records)]
    chart = _chart("The two terms of the bound", "Σλ²", "α")
    places = list(zip(spectral, error, strict=True))
    for record, (a, b) in zip(records, places, strict=True):
        chart["points"].append(_point(a, b, f"{record.title}: Σλ² {a:.4g}, α {b:.3f}", record.title))
    winning = sorted(place for place, (_, interval) in zip(places, winners, strict=True) if interval)
    chart["lines"].append({"style": "fit", "places": winning})
    return Plane(data, chart, sorted(winners, key=lambda winner: winner[1] or (math.inf, math.inf)))


class Curves(NamedTuple):
    """Training curves of one kind of target, whose losses can be compared."""

    target: str
    chart: dict[str, Any]
    runs: list[tuple[int, PretrainRecord, float]]  # key of its line, run, last loss


def training_curves(records: Sequence[PretrainRecord]) -> list[Curves]:
    """The loss of every run, a chart for each kind of target: their losses have different units."""
    found: dict[str, Curves] = {}
    for key, record in enumerate(unique(records)):
        places = read_losses(record.found.folder / METRICS)
        if len(places) > 1:
            name = f"Loss of predicting {record.target}"
            group = found.setdefault(record.target, Curves(record.target, _chart(name, "step", "loss"), []))
            last = float(places[-1, 1])
            label = {"run": key, "title": f"{record.title}: last loss {last:.4g}", "label": record.title}
            group.chart["lines"].append({"style": "curve", "places": thin(places, CURVE).tolist(), **label})
            group.runs.append((key, record, last))
    return list(found.values())


def read_losses(path: Path) -> Floats:
    """Steps and losses (n, 2) of metrics.jsonl; lines that have none, or are damaged, are left out."""
    places = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        step, loss = (as_float(values.get(key)) if isinstance(values, dict) else None for key in ("step", "loss"))
        if step is not None and loss is not None:
            places.append((step, loss))
    return np.array(places, dtype=np.float64).reshape(-1, 2)


def thin(points: Floats, count: int) -> Floats:
    """At most so many of points (n, 2), evenly, the first and the last among them."""
    return np.take(points, np.unique(np.linspace(0, len(points) - 1, count).round().astype(int)), axis=0)


def usage_bars(counts: NDArray[np.int64]) -> list[float]:
    """Heights in [0, 1] of bars of a codebook's use, most used token first; many share a bar, which has their mean."""
    groups = np.array_split(np.sort(counts)[::-1], min(len(counts), BARS))
    means = [float(group.mean()) for group in groups]
    return [round(mean / max(*means, 1.0), 4) for mean in means]


def _chart(label: str, x: str, y: str) -> dict[str, Any]:
    return {"x": x, "y": y, "label": label, "points": [], "lines": [], "band": []}


def _point(x: float, y: float, title: str, group: str) -> dict[str, Any]:
    """A point; those of one group share a label."""
    return {"x": x, "y": y, "title": title, "group": group}
