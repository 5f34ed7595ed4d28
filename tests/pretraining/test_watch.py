"""`watch`: what is measured between epochs, and that the training does not notice."""

from __future__ import annotations

import html
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clustermim.cli import main
from clustermim.data import from_arrays, open_source
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.pretraining import Watch, pretrain
from clustermim.reports.curves import NAMES as TITLES
from clustermim.reports.curves import read_curves
from clustermim.runs import read_summary
from clustermim.training import CHECKPOINT

DATA = "textures:?images=64&grid=4&patch=4"
OTHERS = "textures:?images=48&grid=4&patch=4&seed=5"
SHORT: dict[str, Any] = {"patch_size": 4, "epochs": 2, "batch_size": 16, "device": "cpu"}
NAMES = [f"watch_{name}{end}" for end in ("", "_cls") for name in ("knn", "probe", "rankme", "lidar")]


class Known(nn.Module):
    """An encoder whose tokens are a function of the image's mean."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean((1, 2, 3))[:, None]
        return self.function(means)[:, None].expand(-1, 5, -1)  # (B, 1 + 4, D)


def lit(classes: int, images: int) -> Any:
    """Images whose class is how light they are, and nothing else."""
    labels = np.arange(images) % classes
    return from_arrays(np.broadcast_to((labels * 20)[:, None, None, None], (images, 8, 8, 3)).astype(np.uint8), labels)


def measured(source: Any, encoder: nn.Module) -> dict[str, float]:
    watch = Watch(source)
    watch.start()
    return watch(encoder)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["mae", "beit"])
def test_the_training_does_not_notice(layout: str, tmp_path: Path) -> None:
    options = SHORT | {"layout": layout, "drop_path": 0.2}  # which draws from the global generators
    plain = pretrain(DATA, "pixels", **options, out=tmp_path / "plain")
    watched = pretrain(DATA, "pixels", **options, out=tmp_path / "watched", watch=OTHERS)
    assert watched.weights == plain.weights
    first, second = (load_file(tmp_path / name / CHECKPOINT) for name in ("plain", "watched"))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)  # weights, optimizer and generators
    assert [[name for name in line if name in NAMES] for line in watched.history] == [NAMES, NAMES]
    without = [{name: value for name, value in line.items() if name not in NAMES} for line in watched.history]
    assert without == plain.history
    assert not any(math.isnan(line[name]) for line in watched.history for name in NAMES)


def test_a_resumed_run_has_the_same_lines(tmp_path: Path) -> None:
    options = SHORT | {"epochs": 3, "watch": OTHERS}
    pretrain(DATA, "pixels", **options, out=tmp_path / "whole")
    with pytest.raises(SystemExit):
        pretrain(DATA, "pixels", **options, out=tmp_path / "parts", stop_after=1)
    with pytest.raises(RunError, match="was started with watch"):
        pretrain(DATA, "pixels", **options | {"watch": None}, out=tmp_path / "parts", resume=True)
    pretrain(DATA, "pixels", **options, out=tmp_path / "parts", resume=True)
    for name in ("metrics.jsonl", "encoder.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    both = [read_summary(tmp_path / name)["results"]["watch"] for name in ("whole", "parts")]
    assert both[0] == both[1]
    assert list(both[0]) == ["1", "2", "3"]
    assert both[0]["1"].keys() == {name.removeprefix("watch_") for name in NAMES}


def test_a_run_goes_on_with_the_images_it_watched(tmp_path: Path) -> None:
    place = tmp_path / "watched.npz"
    options = SHORT | {"watch": f"npz:{place}", "out": tmp_path / "run"}
    random = np.random.default_rng(0)
    for stop in (1, None):
        np.savez(place, images=random.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8))
        if stop:
            with pytest.raises(SystemExit):
                pretrain(DATA, "pixels", **options, stop_after=stop)
    with pytest.raises(RunError, match=r"the watch is not what .* was begun with"):
        pretrain(DATA, "pixels", **options, resume=True)


def test_every_second_epoch() -> None:
    found = pretrain(DATA, "pixels", **SHORT | {"epochs": 4}, watch=OTHERS, watch_every=2).history
    assert [line["epoch"] for line in found if "watch_knn" in line] == [2, 4]


def test_without_labels_the_others_are_given_and_it_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    found = pretrain(DATA, "pixels", **SHORT, watch=from_arrays(images)).history
    names = ["watch_rankme", "watch_lidar", "watch_rankme_cls", "watch_lidar_cls"]
    assert [name for name in found[-1] if name.startswith("watch_")] == names
    error = capsys.readouterr().err
    assert error.count("has no labels: --watch gives RankMe and LiDAR only") == 1
    assert "epoch 2/2: rankme " in error


def test_the_command_watches_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pretrain", "--data", DATA, "--target", "pixels", "--patch-size", "4", "--epochs", "2"]
    words += ["--batch-size", "16", "--device", "cpu", "--out", str(tmp_path / "run"), "--watch", OTHERS]
    assert main(words) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert f"epoch 2/2: knn {lines[-1]['watch_knn']:.3g}, probe " in capsys.readouterr().err
    curves = read_curves(tmp_path / "run" / "metrics.jsonl")
    assert [len(curves[name, "epoch"]) for name in NAMES] == [2] * len(NAMES)
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert all(html.escape(TITLES[name]) in page for name in NAMES)


def test_values_of_known_features() -> None:
    best = measured(lit(10, 200), Known(lambda x: torch.eye(10)[(x[:, 0] * 255 / 20).round().long().clamp(0, 9)]))
    assert best["watch_knn"] == best["watch_probe"] == best["watch_knn_cls"] == 1
    assert best["watch_rankme"] == pytest.approx(10)  # ten directions, each as often
    worst = measured(lit(10, 200), Known(lambda x: torch.ones_like(x).expand(-1, 3)))
    assert worst["watch_knn"] <= 0.2
    assert worst["watch_rankme"] == pytest.approx(1)
    assert math.isnan(worst["watch_lidar"])


@pytest.mark.parametrize(("classes", "images"), [(1, 30), (1, 1), (2, 2), (3, 3)])
def test_few_images_and_classes(classes: int, images: int) -> None:
    found = measured(lit(classes, images), Known(lambda x: torch.cat([x, x**2], 1)))
    assert list(found) == NAMES
    assert math.isnan(found["watch_knn"]) == math.isnan(found["watch_probe"]) == (classes == 1)


def test_features_that_are_no_numbers() -> None:
    assert all(map(math.isnan, measured(lit(3, 30), Known(lambda x: x / 0)).values()))


def test_images_are_bounded_and_the_same_each_time() -> None:
    first, second = Watch(lit(10, 3000)), Watch(lit(10, 3000))
    for watch in (first, second):
        watch.start()
    assert len(first.images) == 1024
    assert first.images.equal(second.images)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"watch": OTHERS, "watch_every": 0}, ConfigError, "--watch-every 0 is too small"),
        ({"watch_every": 2}, ConfigError, "--watch-every says how often"),
        ({"watch": "textures:?images=20&grid=2&patch=4"}, DataError, "made for 3×16×16: add .size=16x16"),
    ],
)
def test_refusals(options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        pretrain(open_source(DATA), "pixels", **SHORT, **options, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_ranks_watch_without_waiting_for_ever(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    program += [str(Path(__file__).parents[1] / "launch.py"), "pretrain", "--data", DATA, "--target", "pixels"]
    program += ["--patch-size", "4", "--epochs", "2", "--batch-size", "16", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, more in (("plain", []), ("watched", ["--watch", OTHERS])):
        words = [*program, "--out", str(tmp_path / name), *more]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
    weights = [(tmp_path / name / "encoder.safetensors").read_bytes() for name in ("plain", "watched")]
    assert weights[0] == weights[1]
    assert list(read_summary(tmp_path / "watched")["results"]["watch"]) == ["1", "2"]
