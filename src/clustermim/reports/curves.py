"""The curves of trainings: every quantity that they logged, by epoch and by step apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.errors import RunError
from clustermim.reading import parse_json
from clustermim.reports.records import NamedRun
from clustermim.runs import METRICS, read_metrics

POINTS = 150  # of a curve
MOST = 24  # quantities
NAMES = {"loss": "loss", "accuracy": "token accuracy", "lr": "learning rate", "grad_norm": "gradient norm"}
NAMES |= {  # what `pretrain --watch` measures, by its name in metrics.jsonl
    f"watch_{name}{end}": f"{title}{pooling}"
    for end, pooling in (("", ""), ("_cls", ", class token"))
    for name, title in (("knn", "kNN"), ("probe", "quick probe"), ("rankme", "RankMe"), ("lidar", "LiDAR"))
}
SHARED = {"lr", *(name for name in NAMES if name.startswith("watch_"))}  # of all targets in the same unit
MEASURED = "watch_"  # the beginning of what is measured once an epoch
PLACE = ("step", "epoch")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """The charts of one quantity by epoch or by step: one for each kind of target, whose units differ."""

    name: str
    by: str
    charts: dict[str, dict[str, Any]]

    @property
    def title(self) -> str:
        return f"{NAMES.get(self.name, self.name)}, by {self.by}"


def training_curves(runs: Sequence[NamedRun]) -> list[Curves]:
    """Every quantity of every training; a line needs two points."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for key, (title, run) in sorted(enumerate(runs), key=lambda pair: pair[1].run.stage != "pretrain"):
        kind = _kind(run.stage, run.config)
        for (name, by), places in read_curves(run.folder / METRICS).items():
            if len(places) > 1:
                group = "all" if name in SHARED else kind
                charts = found.setdefault((name, by), {})
                label = NAMES.get(name, name)
                empty = {"x": by, "y": label, "label": f"{label} by {by}, {group}", "points": [], "band": []}
                chart = charts.setdefault(group, empty | {"lines": [], "whole": True})
                chart["lines"].append(_line(key, title, label, places))
    order = {name: place for place, name in enumerate(NAMES)}
    keys = sorted(found, key=lambda pair: (order.get(pair[0], len(order)), pair))
    return [Curves(*pair, found[pair]) for pair in keys[: 2 * MOST]]


def _kind(stage: str, config: dict[str, Any]) -> str:
    """What is learned, in words: losses of one kind compare."""
    return f"predicting {config.get('target')}" if stage == "pretrain" else stage


def _line(key: int, title: str, name: str, places: Floats) -> dict[str, Any]:
    last = float(places[-1, 1])
    some = [[float(f"{value:.6g}") for value in place] for place in thin(places, POINTS).tolist()]
    label = {"run": key, "title": f"{title}: last {name} {last:.4g}", "label": title, "last": last}
    return {"style": "curve", "places": some, **label}


def read_curves(path: Path) -> dict[tuple[str, str], Floats]:
    """Places and values (n, 2) by the name of a quantity and by "epoch" or "step"; damaged lines are left out.

    The line at the end of an epoch has the means of it. Its other means are of the few steps since the line before:
    they would put a tooth at the end of every epoch, so that they are left out.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    lines = list[bytes]()
    with suppress(RunError):
        lines = read_metrics(path) if path.is_file() else lines
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, OverflowError, AttributeError):
            values = parse_json(line)
            ended = any(name.startswith("epoch_") for name in values)
            for name, value in values.items():
                by = "epoch" if name.startswith(("epoch_", MEASURED)) else "step"
                if name in PLACE or isinstance(value, bool) or (by == "step" and ended and name != "lr"):
                    continue
                with suppress(ValueError, TypeError, KeyError, OverflowError):
                    place = float(values[by]), float(value)
                    found.setdefault((name.removeprefix("epoch_"), by), []).append(place)
    arrays = {key: np.array(places, dtype=np.float64).reshape(-1, 2) for key, places in found.items()}
    return {key: places[np.isfinite(places).all(1)] for key, places in arrays.items()}


def thin(points: Floats, count: int) -> Floats:
    """At most so many of points (n, 2), evenly, the first and the last among them."""
    return np.take(points, np.unique(np.linspace(0, len(points) - 1, count).round().astype(int)), axis=0)
