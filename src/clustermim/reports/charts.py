"""The charts of a report: score against accuracy, the plane of the bound, training curves, use of the codebook."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from clustermim.reports.axes import AT_END, Chart, Line, Mark, make_chart, place_labels, to_path
from clustermim.reports.records import PretrainRecord, TokenizerRecord, unique
from clustermim.reports.values import MEASURES, SCORES, Value, number
from clustermim.runs import METRICS
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
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) < LEAST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    u, v = a - a.mean(), b - b.mean()
    slope = float(u @ v / (u @ u))
    free = len(a) - 2
    noise = math.sqrt(max(float(((v - slope * u) ** 2).sum()), 0.0) / free)
    at = np.linspace(a.min(), a.max(), places)
    middle = b.mean() + slope * (at - a.mean())
    half_width = float(student.ppf(0.975, free)) * noise * np.sqrt(1 / len(a) + (at - a.mean()) ** 2 / (u @ u))
    return Fit(at, middle, middle - half_width, middle + half_width, float(u @ v / math.sqrt((u @ u) * (v @ v))))


@dataclass(frozen=True)
class Scatter:
    """A score on one source against an accuracy on one source."""

    measured_on: str
    data: str  # both sources, in words
    score: str  # keys of SCORES and MEASURES
    measure: str
    chart: Chart
    count: int  # tokenizers
    runs: int
    r: float | None  # over tokenizers, of whose runs the mean counts


def scatters(records: Sequence[PretrainRecord]) -> list[Scatter]:
    """A chart for each source, score and accuracy that some pretraining on tokens has."""
    groups: dict[tuple[str, str], list[tuple[PretrainRecord, TokenizerRecord]]] = {}
    for record in records:
        if record.tokenizer is not None and record.tokenizer.scores and record.accuracies:
            sources = record.measured_on or "", record.tokenizer.scored_on or "unknown images"
            groups.setdefault(sources, []).append((record, record.tokenizer))
    measured = Counter(place for place, _ in groups)
    found = []
    for (place, scored_on), members in groups.items():
        data = place if measured[place] == 1 else f"{place}, scored on {scored_on}"
        for measure in MEASURES:
            for score in SCORES:
                chosen = [
                    (tokenizer, record, tokenizer.scores[score], record.accuracies[measure])
                    for record, tokenizer in members
                    if score in tokenizer.scores and measure in record.accuracies
                ]
                if chosen:
                    found.append(_scatter((place, data), score, measure, chosen))
    return found


def _scatter(
    sources: tuple[str, str],
    score: str,
    measure: str,
    chosen: Sequence[tuple[TokenizerRecord, PretrainRecord, Value, Value]],
) -> Scatter:
    x, y = [value.value for _, _, value, _ in chosen], [value.value for *_, value in chosen]
    runs: dict[str, list[tuple[float, float]]] = {}  # of each tokenizer: seeds are not independent of each other
    for (tokenizer, *_), pair in zip(chosen, zip(x, y, strict=True), strict=True):
        runs.setdefault(tokenizer.title, []).append(pair)
    fit = fit_line(*np.array([np.mean(pairs, axis=0) for pairs in runs.values()]).T.tolist())
    shown = [*y, *(end for *_, value in chosen for end in (value.low, value.high) if end is not None)]
    if fit is not None:
        shown += [*fit.low.tolist(), *fit.high.tolist()]
    names = SCORES[score], f"{MEASURES[measure]}, %"
    chart = make_chart(f"{names[0]} against {MEASURES[measure]}", *names, x, shown)
    for tokenizer, record, at, value in chosen:
        title = f"{record.title}: {names[0]} {at.value:.4g}, {MEASURES[measure]} {value.value:.1f} %"
        low, high = (None if end is None else chart.y(end) for end in (value.low, value.high))
        chart.marks.append(Mark(chart.x(at.value), chart.y(value.value), title, tokenizer.title, low, high))
    if fit is not None:
        band = [*zip(fit.x, fit.high, strict=True), *zip(fit.x[::-1], fit.low[::-1], strict=True)]
        chart.areas.append(to_path(((chart.x(a), chart.y(b)) for a, b in band), closed=True))
        ends = [(chart.x(float(fit.x[i])), chart.y(float(fit.middle[i]))) for i in (0, -1)]
        chart.lines.append(Line(to_path(ends), style="fit"))
    chart.labels = place_labels(chart.marks)
    return Scatter(*sources, score, measure, chart, len(runs), len(chosen), None if fit is None else fit.r)


class Winner(NamedTuple):
    """A tokenizer on the plane of the bound Σλ² + r·α, and the ratios r = c2/c1 at which it is the lowest."""

    tokenizer: TokenizerRecord
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Plane:
    """Tokenizers that were scored on one source, by the two terms of the bound."""

    data: str
    whole: Chart  # with the two ends: a single token, and the labels
    near: Chart  # the tokenizers alone, with their lower envelope
    winners: list[Winner]


def planes(records: Sequence[TokenizerRecord]) -> list[Plane]:
    """A plane for each source on which tokenizers were scored."""
    # The oracle is no choice: it is one of the two ends.
    choices = [record for record in records if record.kind != ORACLE and record.scored_on]
    placed = [record for record in choices if "sum_sq" in record.scores and "alpha" in record.scores]
    sources = dict.fromkeys(record.scored_on for record in placed)
    return [_plane([record for record in placed if record.scored_on == data]) for data in sources]


def _plane(records: Sequence[TokenizerRecord]) -> Plane:
    spectral = [record.scores["sum_sq"].value for record in records]
    error = [record.scores["alpha"].value for record in records]
    intervals = [winning_interval(spectral, error, i) for i in range(len(records))]
    classes = records[0].classes
    ends = {"a single token": (1.0, 1 - 1 / max(classes, 1)), "the labels": (float(classes), 0.0)} if classes else {}
    charts = []
    for title, others in (("The whole plane", ends), ("The tokenizers alone", {})):
        x, y = [*spectral, *(a for a, _ in others.values())], [*error, *(b for _, b in others.values())]
        chart = make_chart(title, "Σλ²", "α", x, y)
        for name, (a, b) in others.items():
            chart.marks.append(Mark(chart.x(a), chart.y(b), f"{name}: Σλ² {a:.4g}, α {b:.3f}", name, style="end"))
        for record, a, b in zip(records, spectral, error, strict=True):
            text = f"{record.title}: Σλ² {a:.4g}, α {b:.3f}"
            chart.marks.append(Mark(chart.x(a), chart.y(b), text, "" if others else record.title))
        charts.append(chart)
    winning = sorted((a, b) for a, b, interval in zip(spectral, error, intervals, strict=True) if interval)
    charts[1].lines.append(Line(to_path((charts[1].x(a), charts[1].y(b)) for a, b in winning), style="fit"))
    for chart in charts:
        chart.labels = place_labels(chart.marks)
    winners = [Winner(record, interval) for record, interval in zip(records, intervals, strict=True)]
    winners.sort(key=lambda winner: winner.interval or (math.inf, math.inf))
    return Plane(records[0].scored_on or "", charts[0], charts[1], winners)


@dataclass(frozen=True)
class Curves:
    """Training curves of one kind of target, whose losses can be compared."""

    target: str
    chart: Chart
    runs: list[tuple[int, PretrainRecord, float]]  # key of its line, run, last loss


def training_curves(records: Sequence[PretrainRecord]) -> list[Curves]:
    """The loss of every run, a chart for each kind of target: their losses have different units."""
    curves: dict[str, list[tuple[int, PretrainRecord, Floats]]] = {}
    for key, record in enumerate(unique(records)):
        points = read_losses(record.found.folder / METRICS)
        if len(points) > 1:
            curves.setdefault(record.target, []).append((key, record, thin(points, CURVE)))
    return [_curves(target, runs) for target, runs in curves.items()]


def _curves(target: str, runs: Sequence[tuple[int, PretrainRecord, Floats]]) -> Curves:
    x, y = np.concatenate([points for *_, points in runs]).T.tolist()
    chart = make_chart(f"Loss of predicting {target}", "step", "loss", [0, *x], y)
    for key, record, points in runs:
        path = to_path((chart.x(a), chart.y(b)) for a, b in points)
        chart.lines.append(Line(path, f"{record.title}: last loss {points[-1, 1]:.4g}", "curve", key))
    ends = [Mark(chart.x(points[-1, 0]), chart.y(points[-1, 1]), "", record.title) for _, record, points in runs]
    chart.labels = place_labels(ends, AT_END)  # as far as there is room; the legend has them all
    return Curves(target, chart, [(key, record, float(points[-1, 1])) for key, record, points in runs])


def read_losses(path: Path) -> Floats:
    """Steps and losses (n, 2) of metrics.jsonl; lines that have none, or are damaged, are left out."""
    points = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        step, loss = (number(values.get(key)) if isinstance(values, dict) else None for key in ("step", "loss"))
        if step is not None and loss is not None:
            points.append((step, loss))
    return np.array(points, dtype=np.float64).reshape(-1, 2)


def thin(points: Floats, count: int) -> Floats:
    """At most so many of points (n, 2), evenly, the first and the last among them."""
    if len(points) <= count:
        return points
    thinner: Floats = points[np.linspace(0, len(points) - 1, count).round().astype(int)]
    return thinner


def usage_bars(counts: NDArray[np.int64], width: float = 240, height: float = 72) -> str:
    """The path of bars of a codebook's use, most used token first; many tokens share a bar, which has their mean."""
    sorted_counts = np.sort(counts)[::-1].astype(np.float64)
    groups = np.array_split(sorted_counts, min(len(sorted_counts), BARS))
    means = np.array([group.mean() for group in groups])
    heights = means / max(float(means.max()), 1.0) * height
    step = width / len(means)
    gap = min(1.0, step / 4)
    return "".join(
        f"M{i * step:.1f} {height:.1f}V{height - bar:.1f}H{(i + 1) * step - gap:.1f}V{height:.1f}Z"
        for i, bar in enumerate(heights)
        if bar > 0
    )
