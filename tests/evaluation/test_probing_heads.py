"""The heads of MAE's probe: none notices the others, and descent comes near the optimum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from clustermim.evaluation.labels import POOLINGS, Pooling
from clustermim.evaluation.probing import Descent, Heads, head_losses, make_optimizer
from clustermim.training import set_lr


def trained(heads: Heads, optimizer: Descent, features: Callable[[Tensor], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights after five steps."""
    descent = make_optimizer(optimizer, heads, 1.0)
    draws = torch.Generator().manual_seed(3)
    for number in range(5):
        set_lr(descent, 0.5 + 0.1 * number)
        images, labels = torch.randn(16, 6, generator=draws), torch.randint(4, (16,), generator=draws)
        head_losses(heads, features(images), labels)["loss"].backward()
        descent.step()
        descent.zero_grad()
    return {name: tensor.clone() for name, tensor in heads.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_each_head_learns_as_if_alone(pooling: Pooling, optimizer: Descent) -> None:
    """From the same start; on the command line the second head of two starts elsewhere than one alone."""

    def features(images: Tensor) -> dict[str, Tensor]:
        return {"avg": images, "cls": images.square()}

    both, alone = Heads(POOLINGS, 6, 4), Heads((pooling,), 6, 4)
    before = {name: tensor.clone() for name, tensor in both.state_dict().items() if f".{pooling}." in name}
    alone.load_state_dict(before)
    found, expected = trained(both, optimizer, features), trained(alone, optimizer, features)
    assert expected.keys() == before.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert not torch.equal(expected[f"heads.{pooling}.1.weight"], before[f"heads.{pooling}.1.weight"])


def test_the_norm_has_statistics_and_no_weights() -> None:
    for head in Heads(POOLINGS, 6, 4).heads.values():
        norm = cast(nn.Sequential, head)[0]
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.weight is None
        assert norm.bias is None
        assert set(norm.state_dict()) == {"running_mean", "running_var", "num_batches_tracked"}


def test_sgd_comes_near_the_optimum_on_digits(command: Callable[..., int], save_micro: Callable[..., Path]) -> None:
    run = save_micro(channels=1)
    weights = (run / "encoder.safetensors").read_bytes()
    data = ("--data", "digits/train?limit=400", "--test-data", "digits/test?limit=200")
    assert command("probe", run, *data) == 0
    words = ("--protocol", "mae", "--optimizer", "sgd", "--augment", "none", "--batch-size", "40", "--epochs", "20")
    assert command("probe", run, *data, *words, "--device", "cpu") == 0
    best, found = (results(run / name) for name in ("probe", "probe-mae"))
    for pooling in POOLINGS:
        assert found[pooling]["accuracy"] > best[pooling]["accuracy"] - 0.06  # 2 % is the standard error of either
    assert (run / "encoder.safetensors").read_bytes() == weights  # frozen means frozen


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())["results"]
    return found
