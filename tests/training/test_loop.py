"""The loop: gradients, lines of metrics, and every way a training can end."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from torch import Tensor, nn

from clustermim.errors import ConfigError, DataError, RunError, UserError
from clustermim.progress import log_info
from clustermim.runs import open_resumable_run, read_summary
from clustermim.training import CHECKPOINT, Loop, Settings, Stopped, TrainResult, find_device, lr_at, open_fabric


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def descend(folder: Path, rows: Tensor, batch: int, **changes: Any) -> Tensor:
    """The weights (1, 3) after one step of plain gradient descent on rows, from zero."""
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = Settings(1, 1, len(rows), 1.0, accumulate=len(rows) // batch, **changes)

    def step(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()}

    def batches(epoch: int, start: int) -> Iterator[Tensor]:
        return iter(rows.split(batch)[start:])

    with open_resumable_run(folder, "toy", {}) as run:
        Loop(step, batches, model, optimizer, settings, run, open_fabric("cpu")).train()
    return model.weight.detach()


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    rows = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    whole, parts = (descend(tmp_path / str(size), rows, size) for size in (32, 16))
    expected = 2 * (rows.sum(dim=1, keepdim=True) * rows).mean(dim=0, keepdim=True)  # minus the gradient at zero
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(parts, whole)
    assert lines(tmp_path / "16")[0]["loss"] == pytest.approx(lines(tmp_path / "32")[0]["loss"])


def test_clipping(tmp_path: Path) -> None:
    rows = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    free, clipped, loose = (
        descend(tmp_path / name, rows, 32, clip=clip) for name, clip in (("a", None), ("b", 0.5), ("c", 1e6))
    )
    torch.testing.assert_close(clipped, free * 0.5 / free.norm())
    assert torch.equal(loose, free)
    assert lines(tmp_path / "b")[0]["grad_norm"] == pytest.approx(float(free.norm()))  # as it was before clipping


def test_lines_of_metrics(tmp_path: Path) -> None:
    seen: list[float] = []

    def step(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        values = toy.step(model, batch)
        seen.append(float(values["loss"].detach()))
        return values

    trained = toy.run_toy(tmp_path / "run", step=step)
    found = lines(tmp_path / "run")
    # every 4 steps and at the end of each epoch of 6
    assert [line["step"] for line in found] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert [line["epoch"] for line in found] == [1, 1, 2, 2, 3, 3, 4, 4]
    losses = torch.tensor(seen).view(-1, toy.ACCUMULATE).mean(dim=1)
    assert found[0]["loss"] == pytest.approx(float(losses[:4].mean()))
    assert found[1]["loss"] == pytest.approx(float(losses[4:6].mean()))
    assert found[3]["epoch_loss"] == pytest.approx(float(losses[6:12].mean()))
    assert "epoch_loss" not in found[0]
    assert found[0]["lr"] == lr_at(3, lr=0.01, total_steps=24, warmup_steps=3)
    assert found[0].keys() == {"step", "epoch", "loss", "worst", "grad_norm", "lr"}
    assert trained.final["loss"] == found[-1]["epoch_loss"]
    assert trained.steps == 24
    assert trained.images_per_second > 0
    assert 0 <= trained.data_share <= 1
    assert read_summary(tmp_path / "run")["results"] == trained.final


def test_an_evaluation_after_each_epoch(tmp_path: Path) -> None:
    model = toy.make_model()

    def evaluate(epochs: int) -> dict[str, float]:
        model.eval()
        return {"accuracy": epochs / 10}

    def step(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        assert model.training
        return toy.step(model, batch)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open_resumable_run(tmp_path / "run", "toy", {}) as run:
        Loop(step, toy.batches, model, optimizer, toy.settings(), run, open_fabric("cpu"), after_epoch=evaluate).train()
    assert [line["accuracy"] for line in lines(tmp_path / "run") if "accuracy" in line] == [0.1, 0.2, 0.3, 0.4]


def broken(at: int, damage: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Tensor], dict[str, Tensor]]:
    """The toy's step function, with a fault in one batch."""
    count = iter(range(10_000))

    def step(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        values = toy.step(model, batch)
        return {**values, "loss": damage(values["loss"])} if next(count) == at else values

    return step


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    nan = broken(2 * 13, lambda loss: loss * float("nan"))  # step 14, in epoch 3
    with pytest.raises(
        UserError, match=r"step 14 \(epoch 3\): loss nan, learning rate 0\.00\d+, gradient norm nan"
    ) as e:
        toy.run_toy(tmp_path / "run", step=nan, checkpoint_seconds=0.0)
    assert "the checkpoint of step 13 in" in str(e.value)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run" / "summary.json").exists()
    # the checkpoint is good: without the fault it leads to the end
    toy.run_toy(tmp_path / "run", resume=True)
    toy.run_toy(tmp_path / "whole")
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_a_gradient_that_is_not_finite(tmp_path: Path) -> None:
    # √(x − x) is 0 and its gradient is not finite
    sharp = broken(4, lambda loss: loss.detach() + (loss - loss.detach()).sqrt())
    with pytest.raises(
        UserError, match=r"step 3 \(epoch 1\): loss \d.*gradient norm (nan|inf); no checkpoint was saved"
    ):
        toy.run_toy(tmp_path / "run", step=sharp)


def test_too_few_batches(tmp_path: Path) -> None:
    model = toy.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        pytest.raises(DataError, match="epoch 1 gave 12 batches of the 14 that an epoch has"),
        open_resumable_run(tmp_path / "run", "toy", {}) as run,
    ):
        Loop(toy.step, toy.batches, model, optimizer, toy.settings(steps_per_epoch=7), run, open_fabric("cpu")).train()


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.run_toy(tmp_path / "whole")
    with pytest.raises(Stopped):
        toy.run_toy(tmp_path / "run", stop_after=2)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            RunError, match=r"cannot save .* of step 13: No space left on device; the one of step 12 is"
        ):
            toy.run_toy(tmp_path / "run", resume=True, checkpoint_seconds=0.0)
    toy.run_toy(tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_another_number_of_steps_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        toy.run_toy(tmp_path / "run", stop_after=1)
    with pytest.raises(RunError, match="was made with steps_per_epoch 6, not 5"):
        toy.run_toy(tmp_path / "run", resume=True, steps_per_epoch=5)


def test_training_outside_the_main_thread(tmp_path: Path) -> None:
    found: list[TrainResult] = []
    thread = threading.Thread(target=lambda: found.append(toy.run_toy(tmp_path / "run")))
    thread.start()
    thread.join()
    assert found[0].steps == 24


def test_a_log_has_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clustermim.training.display.LINE_EVERY", 0.0)
    toy.run_toy(tmp_path / "run")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 24
    assert said[6].startswith("epoch 2/4, step 7/24: loss ")
    assert all(word in said[6] for word in ("lr ", " images/s", "data ", " left"))


def test_a_terminal_has_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert toy.run_toy(tmp_path / "run").steps == 24
    log_info("after the bar")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1"),
        ({"lr": 0.0}, "learning rate"),
        ({"min_lr": 1.0}, "learning rate"),
        ({"lr": float("nan")}, "learning rate"),
        ({"clip": 0.0}, "positive norm"),
        ({"warmup_steps": 24}, "a warm-up of 24 steps does not fit into 24 steps"),
        ({"stop_after": 0}, "stop_after"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toy.settings(**changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"--device cuda is not available here; there are: .*cpu"):
        open_fabric("cuda")
    with pytest.raises(ConfigError, match=r"--device cuda is not available here"):
        find_device("cuda")
    assert find_device("cpu") == torch.device("cpu")
    assert find_device() == find_device("auto")


def test_precision(tmp_path: Path) -> None:
    kinds = []
    for precision in ("auto", "bf16-mixed"):
        model = nn.Linear(4, 4)
        wrapped = open_fabric("cpu", precision).setup(nn.Sequential(model))  # type: ignore[arg-type]
        model.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
        wrapped(torch.randn(2, 4))
    assert kinds == [torch.float32, torch.bfloat16]


def assert_same_end(first: Path, second: Path) -> None:
    """Two runs ended with the same bytes of weights, optimizer state and metrics."""
    assert toy.tensors(first / CHECKPOINT) == toy.tensors(second / CHECKPOINT)
    assert (first / "metrics.jsonl").read_bytes() == (second / "metrics.jsonl").read_bytes()
