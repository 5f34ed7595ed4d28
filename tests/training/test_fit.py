"""`fit`: a task and a schedule, with and without a run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clustermim.data import Batch, open_source, to_float
from clustermim.data.randomness import ImageRandom
from clustermim.errors import ConfigError, DataError
from clustermim.runs import pending_run, read_summary
from clustermim.training import CHECKPOINT, RunOptions, Schedule, Settings, Stopped, Task, fit
from clustermim.training.schedule import make_settings

SHORT = Schedule(epochs=2, batch_size=8, device="cpu", seed=3)


class Brightness(Task):
    """Predict the mean of an image; it notes when it is asked for what."""

    name, base_lr = "brightness", 0.01

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.source = open_source("textures:?images=32&grid=2&patch=4")
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.calls: list[str] = []

    def setup(self, settings: Settings, fabric: object) -> None:
        self.calls.append(f"setup {settings.total_steps} steps, {settings.images_per_batch} images")

    def start(self) -> None:
        self.calls.append("start")

    def view(self, batch: Batch, random: ImageRandom) -> Tensor:
        images = to_float(batch.images)
        return images + 0.1 * random(images[0].numel()).view_as(images).float()

    def step(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": (model(batch).squeeze(1) - batch.mean((1, 2, 3))).square().mean()}

    def after_epoch(self, epoch: int) -> dict[str, float]:
        return {"epochs_done": float(epoch)}


def test_a_folder_changes_nothing_but_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    free, kept = Brightness(), Brightness()
    result = fit(free, SHORT)
    assert not list(tmp_path.iterdir())
    written = fit(kept, SHORT, tmp_path / "run")
    assert result.history == written.history
    assert [line["epochs_done"] for line in result.history] == [1.0, 2.0]
    assert result.final == written.final
    assert [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()] == result.history
    for ours, theirs in zip(free.model.state_dict().values(), kept.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    summary = read_summary(tmp_path / "run")
    assert summary["stage"] == "brightness"
    assert summary["results"]["steps"] == 8
    assert free.calls == ["setup 8 steps, 8 images", "start"]


def test_the_history_of_a_resumed_run_is_whole(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fit(Brightness(), SHORT, tmp_path / "run", options=RunOptions(stop_after=1))
    resumed = fit(Brightness(), SHORT, tmp_path / "run", options=RunOptions(resume=True))
    assert resumed.history == fit(Brightness(), SHORT).history


def test_a_run_of_the_caller_is_opened_last_and_left_open(tmp_path: Path) -> None:
    with pending_run(tmp_path / "run", "mine", {"seed": 3}) as opened:
        with pytest.raises(DataError, match="fewer than a batch"):
            fit(Brightness(), replace(SHORT, batch_size=64), opened)
        assert not (tmp_path / "run").exists()
        result = fit(Brightness(), SHORT, opened)
        assert (tmp_path / "run" / CHECKPOINT).exists()
        assert not (tmp_path / "run" / "summary.json").exists()
        opened().summary = {"results": result.final}
    assert read_summary(tmp_path / "run")["results"] == result.final


@pytest.mark.parametrize(("images", "batch"), [(300, 256), (256, 256), (255, 32), (64, 16), (5, 1), (1, 1)])
def test_the_usual_batch_is_fitted_to_few_images(images: int, batch: int) -> None:
    settings = make_settings(Schedule(epochs=1, warmup_epochs=0), "few", images, 1e-3)
    assert (settings.images_per_step, settings.steps_per_epoch) == (batch, images // batch)


def test_without_a_folder_ctrl_c_is_a_keyboard_interrupt() -> None:
    task, steps = Brightness(), iter(range(100))

    def interrupted(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        if next(steps) == 2:
            raise KeyboardInterrupt
        return Brightness.step(task, model, batch)

    task.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        fit(task, SHORT)


def test_accumulated_parts_and_the_learning_rate() -> None:
    task = Brightness()
    lines = fit(task, replace(SHORT, accumulate=2, base_lr=0.32, warmup_epochs=1)).history
    assert task.calls[0] == "setup 8 steps, 4 images"
    assert lines[0]["lr"] == pytest.approx(0.32 * 8 / 256)  # the peak, at the end of the warm-up
    assert fit(Brightness(), replace(SHORT, warmup_epochs=1)).history[0]["lr"] == pytest.approx(0.01 * 8 / 256)


def test_options_of_a_folder_need_one() -> None:
    with pytest.raises(ConfigError, match="name one with out"):
        fit(Brightness(), SHORT, options=RunOptions(stop_after=1))
    with pytest.raises(ConfigError, match="--weight-decay -1"):
        fit(Brightness(), replace(SHORT, weight_decay=-1))
