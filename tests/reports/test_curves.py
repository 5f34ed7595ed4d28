"""Curves: epochs and steps apart, without teeth, every quantity, and never of one point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustermim.reports.collect import RunInfo
from clustermim.reports.curves import read_curves, thin, training_curves
from clustermim.reports.records import NamedRun
from clustermim.runs import METRICS


def logged(folder: Path, lines: list[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / METRICS).write_text(text)
    return folder


def named(folder: Path, **config: Any) -> NamedRun:
    stage = "pretrain" if config else "fit vq"
    return NamedRun(folder.name, RunInfo(folder, stage, config, {"results": {}}))


def training(epochs: int, steps: int, every: int) -> list[dict[str, float]]:
    """Lines as the loop writes them: the loss falls slowly, and the last steps of an epoch happen to be high."""
    lines: list[dict[str, float]] = []
    for step in range(1, epochs * steps + 1):
        epoch, ended = (step - 1) // steps + 1, step % steps == 0
        if step % every == 0 or ended:
            line = {"step": step, "epoch": epoch, "loss": 9.0 if ended else 3 - step / 100, "lr": 1 / step}
            lines.append(line | ({"epoch_loss": 3 - epoch / 10, "watch_knn": epoch / 9} if ended else {}))
    return lines


def test_steps_and_epochs_are_apart_and_the_end_of_an_epoch_is_no_tooth(tmp_path: Path) -> None:
    found = read_curves(logged(tmp_path, training(3, 25, 10)) / METRICS)
    assert set(found) == {("loss", "epoch"), ("loss", "step"), ("lr", "step"), ("watch_knn", "epoch")}
    assert found["loss", "epoch"].tolist() == [[1, 2.9], [2, 2.8], [3, 2.7]]
    assert found["loss", "step"][:, 0].tolist() == [10, 20, 30, 40, 60, 70]
    assert (np.diff(found["loss", "step"][:, 1]) < 0).all()
    assert found["lr", "step"][:, 0].tolist() == [10, 20, 25, 30, 40, 50, 60, 70, 75]  # no mean: the rate as it was


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    bad = [{"step": 5}, "[]", "{", "3", {"step": 1, "loss": None}, {"step": 2, "loss": True}, {"loss": 1}]
    good = [{"step": step, "loss": 1 / step} for step in range(1, 1001)]
    found = read_curves(logged(tmp_path, [*bad, *good, {"step": 6, "loss": 10**400}]) / METRICS)
    assert {key: len(places) for key, places in found.items()} == {("loss", "step"): 1000}
    assert read_curves(tmp_path / "absent") == {}


def test_a_chart_for_each_kind_of_target_and_none_of_one_point(tmp_path: Path) -> None:
    runs = [
        named(logged(tmp_path / "a", training(2, 25, 10)), target="tokens"),
        named(logged(tmp_path / "b", training(3, 25, 10)), target="pixels"),
        named(logged(tmp_path / "one", training(1, 5, 10)), target="hog"),
        named(logged(tmp_path / "vq", training(2, 2, 10))),
        named(logged(tmp_path / "own", [{"step": n, "<b>": n} for n in (1, 2)])),
    ]
    found = {(some.name, some.by): some.charts for some in training_curves(runs)}
    labels = {
        key: {group: [line["label"] for line in chart["lines"]] for group, chart in charts.items()}
        for key, charts in found.items()
    }
    assert labels["loss", "epoch"] == {"predicting tokens": ["a"], "predicting pixels": ["b"], "fit vq": ["vq"]}
    assert labels["watch_knn", "epoch"] == {"all": ["a", "b", "vq"]}  # one unit
    assert labels["<b>", "step"] == {"fit vq": ["own"]}
    assert next(iter(found)) == ("loss", "epoch")
    assert all(len(line["places"]) > 1 for charts in found.values() for c in charts.values() for line in c["lines"])
    assert training_curves(runs)[0].title == "loss, by epoch"


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    run = named(logged(tmp_path / "a", [{"step": n, "loss": 1 / n} for n in range(1, 1001)]), target="tokens")
    (curves,) = training_curves([run])
    (line,) = curves.charts["predicting tokens"]["lines"]
    assert len(line["places"]) == 150
    assert line["last"] == pytest.approx(1 / 1000)


@given(st.integers(1, 40), st.integers(2, 20))
def test_thinning_keeps_both_ends(points: int, count: int) -> None:
    line = np.arange(2.0 * points).reshape(-1, 2)
    kept = thin(line, count)
    assert len(kept) == min(points, count)
    assert (kept[0] == line[0]).all()
    assert (kept[-1] == line[-1]).all()
