"""A step in parts, one for each thread: the gradients of the whole, the same bytes again, and where it must not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clustermim.data import open_source
from clustermim.pretraining import Architecture, MaskedBatch, Masking, Objective, make_task, pretrain
from clustermim.pretraining.task import MaskedModeling
from clustermim.targets import TargetOptions
from clustermim.tokenizers import KMeansTokenizer
from clustermim.training import RunOptions, Schedule, SeededBatches, Stopped, fit
from clustermim.training.parts import LEAST_IMAGES, MOST_BYTES, backward_in_parts, count_parts

DATA = "textures:?images=40&grid=4&patch=4"
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 20, "device": "cpu"}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def make(layout: Any = "mae", target: Any = "pixels", drop_path: float = 0.0, **objective: Any) -> MaskedModeling:
    torch.manual_seed(0)
    architecture = Architecture("micro", 4, layout=layout, drop_path=drop_path)
    mask = Masking(mask_ratio=0.5)
    return make_task(open_source(DATA), target, architecture, mask, TargetOptions(), Objective(**objective))


def first_batch(task: MaskedModeling) -> MaskedBatch:
    return next(iter(SeededBatches(task.source, 20, 0, task.view).make(0, 0)))


def learned(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


@pytest.mark.parametrize("layout", ["mae", "beit", "blank"])
@pytest.mark.parametrize("tokens", [False, True])
def test_parts_have_the_gradients_of_the_whole(layout: str, tokens: bool, two_threads: None) -> None:
    task = make(layout, KMeansTokenizer(k=6, patch_size=4).fit(open_source(DATA)) if tokens else "pixels")
    batch = first_batch(task)
    whole = task.step(task.model, batch)
    whole["loss"].backward()
    weights = learned(task.model)
    expected = [weight.grad for weight in weights]
    task.model.zero_grad()
    shares = task.split(batch, 3)
    assert [share for share, _ in shares] == [7 / 20, 7 / 20, 6 / 20]
    for _ in range(2):  # gradients are added to what is there
        found = backward_in_parts(partial(task.step, task.model), shares, weights, 0.5)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value.detach())
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


def count_calls(task: MaskedModeling, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each step of the task was given."""
    calls: list[int] = []
    step: Callable[..., Any] = task.step

    def counted(model: nn.Module, batch: MaskedBatch) -> Any:
        calls.append(len(batch.images))
        return step(model, batch)

    monkeypatch.setattr(task, "step", counted)
    return calls


def test_a_training_uses_them_and_learns_the_same(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, results = Schedule(**SHORT), []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        task = make()
        calls = count_calls(task, monkeypatch)
        results.append(fit(task, schedule))
        assert calls == [20 // threads] * 4 * threads
    assert results[0].final["loss"] == pytest.approx(results[1].final["loss"], abs=1e-5)
    assert results[0].flops == results[1].flops


def test_the_same_bytes_again_and_after_a_stop(tmp_path: Path, two_threads: None) -> None:
    unbroken = pretrain(DATA, **SHORT)
    assert pretrain(DATA, **SHORT).weights == unbroken.weights
    with pytest.raises(Stopped):
        pretrain(DATA, out=tmp_path / "run", run_options=RunOptions(stop_after=1), **SHORT)
    assert (
        pretrain(DATA, out=tmp_path / "run", run_options=RunOptions(resume=True), **SHORT).weights == unbroken.weights
    )


@pytest.mark.parametrize(
    "options", [{"layout": "mixmae"}, {"uniformity": 0.01}, {"drop_path": 0.1}, {"layout": "beit", "drop_path": 0.1}]
)
def test_images_that_depend_on_each_other_or_on_chance_stay_together(options: dict[str, Any]) -> None:
    task = make(**options)
    batch = first_batch(task)
    assert task.split(batch, 2) == [(1.0, batch)]


def test_how_many_parts(two_threads: None) -> None:
    small = [nn.Parameter(torch.zeros(3))]
    assert count_parts(small, 2 * LEAST_IMAGES) == 2
    assert count_parts(small, 2 * LEAST_IMAGES - 1) == 1
    large = [nn.Parameter(torch.empty(MOST_BYTES // 8 + 1, device="meta"))]
    assert count_parts(large, 256) == 1


def test_an_error_in_a_part_comes_through(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make()

    def broken(model: nn.Module, batch: MaskedBatch) -> Any:
        raise ValueError("a part that breaks")

    monkeypatch.setattr(task, "step", broken)
    with pytest.raises(ValueError, match="a part that breaks"):
        fit(task, Schedule(**SHORT))
