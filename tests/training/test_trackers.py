"""Trackers get the lines of metrics.jsonl, on request, and nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toy
from PIL import Image

from clustermim.errors import MissingExtraError
from clustermim.runs import open_resumable_run
from clustermim.training import Loop, adamw, open_fabric, parameter_groups
from clustermim.training.trackers import open_sinks, track_picture


class Writer:
    """A stand-in for TensorBoard's writer, for a run of W&B and for one of MLflow."""

    made: list[Writer]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options
        self.found: dict[int, dict[str, float]] = {}
        self.closed = False
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.found.setdefault(step, {})[name] = value

    def log(self, values: dict[str, float], step: int) -> None:
        self.found[step] = values

    def close(self) -> None:
        self.closed = True

    finish = close

    def __enter__(self) -> Writer:
        self.info = SimpleNamespace(run_id="7")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_image(self, name: str, pixels: Any, step: int, dataformats: str) -> None:
        self.found.setdefault(step, {})[name] = pixels.shape


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    Writer.made = []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Writer))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mlflow", MLflow())  # type: ignore[misc]
    return Writer.made


class MLflow:
    """A stand-in for the module: everything goes to the run that was started last."""

    set_experiment = log_params = staticmethod(lambda given: None)
    start_run = Writer
    log_metrics = staticmethod(lambda values, step: Writer.made[-1].log(values, step))
    log_artifact = staticmethod(lambda path: Writer.made[-1].log({"file": path}, -1))


def test_trackers_follow_a_run(tmp_path: Path, writers: list[Writer]) -> None:
    model = toy.make_model()
    optimizer = adamw(parameter_groups(model), lr=0.01)
    with open_resumable_run(tmp_path / "run", "toy", {"k": 1}) as run:
        Loop(
            toy.step,
            toy.batches,
            model,
            optimizer,
            toy.settings(),
            run,
            open_fabric("cpu"),
            trackers=("tensorboard", "wandb", "mlflow"),
        ).train()
    board, wandb, mlflow = writers
    assert board.found == wandb.found == mlflow.found
    assert list(board.found) == [4, 6, 8, 12, 16, 18, 20, 24]
    assert {"loss", "lr", "grad_norm", "images_per_second", "data_share"} <= board.found[4].keys()
    assert board.closed
    assert wandb.closed
    assert mlflow.closed
    assert board.options["purge_step"] == 1
    assert wandb.options["config"] == {"stage": "toy", "k": 1}


def test_a_resumed_run_keeps_its_curve(tmp_path: Path, writers: list[Writer]) -> None:
    for step in (0, 7):
        with open_resumable_run(tmp_path / str(step), "toy", {}) as run:
            run.folder = tmp_path
            with open_sinks(("tensorboard", "wandb", "mlflow"), run, step):
                pass
    assert [writer.options["purge_step"] for writer in writers[::3]] == [1, 8]
    assert writers[1].options["id"] == writers[4].options["id"]
    assert writers[4].options["resume"] == "allow"
    assert [writer.options for writer in writers[2::3]] == [{"run_name": "0"}, {"run_id": "7"}]


def test_pictures_reach_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: list[Writer]) -> None:
    monkeypatch.setattr(sys.modules["wandb"], "Image", lambda path: path, raising=False)
    path = tmp_path / "seen.png"
    Image.new("L", (5, 3)).save(path)
    with open_resumable_run(tmp_path / "run", "toy", {}) as run:
        track_picture(("tensorboard", "wandb", "mlflow"), run, 9, path)
        track_picture(("tensorboard",), run, 9, tmp_path / "missing.png")
    board, wandb, mlflow = writers
    assert board.found == {9: {"seen": (3, 5, 3)}}
    assert wandb.found == {9: {"seen": str(path)}}
    assert mlflow.found == {-1: {"file": str(path)}}


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_tracker_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'clustermim\[tracking\]'"),
        open_resumable_run(tmp_path / "run", "toy", {}) as run,
        open_sinks((name,), run, 0),
    ):
        pass
