"""Learning rates and parameter groups, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from clustermim.training import adamw, layer_groups, lr_at, parameter_groups, scaled_lr, set_lr


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(4)
        self.qkv = nn.Linear(4, 12)


class Vit(nn.Module):
    """The names of timm's ViT, as far as groups look at them."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.patch_embed = nn.Sequential(nn.Conv2d(3, 4, 2))
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)


def test_the_learning_rate_grows_with_the_batch() -> None:
    assert scaled_lr(1.5e-4, 4096) == pytest.approx(2.4e-3)
    assert scaled_lr(1.5e-4, 256) == 1.5e-4


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.5), (1, 1.0), (2, 1.0), (4, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2), (6, 0.55), (10, 0.1), (11, 0.1)],
)
def test_the_schedule_by_hand(step: int, expected: float) -> None:
    assert lr_at(step, lr=1.0, total_steps=10, warmup_steps=2, min_lr=0.1) == pytest.approx(expected, abs=1e-12)


def test_the_schedule_rises_then_falls_and_wastes_no_step() -> None:
    rates = [lr_at(step, lr=0.3, total_steps=50, warmup_steps=7) for step in range(50)]
    assert rates[:7] == sorted(rates[:7])
    assert rates[7:] == sorted(rates[7:], reverse=True)
    assert min(rates) > 0
    assert max(rates) == pytest.approx(0.3)


def test_what_decays() -> None:
    decayed, kept = parameter_groups(Vit(), weight_decay=0.05)[::-1]
    assert decayed["weight_decay"] == 0.05
    assert decayed["names"] == ["patch_embed.0.weight", "blocks.0.qkv.weight", "blocks.1.qkv.weight", "head.weight"]
    assert kept["weight_decay"] == 0.0
    assert {"cls_token", "pos_embed", "mask_token", "patch_embed.0.bias", "norm.weight", "head.bias"} <= {
        *kept["names"]
    }
    assert len(decayed["params"]) + len(kept["params"]) == len(list(Vit().parameters()))


def test_frozen_parameters_are_left_out() -> None:
    model = Vit()
    model.pos_embed.requires_grad_(False)
    assert "pos_embed" not in [name for group in parameter_groups(model) for name in group["names"]]


def test_layers_learn_at_their_own_rate() -> None:
    groups = layer_groups(Vit(blocks=2), decay=0.5, weight_decay=0.05)
    found = {name: (group["lr_scale"], group["weight_decay"]) for group in groups for name in group["names"]}
    # two blocks: layers 0 (embedding), 1, 2 (blocks) and 3 (norm and head)
    assert found["cls_token"] == found["pos_embed"] == found["mask_token"] == (0.125, 0.0)
    assert found["patch_embed.0.weight"] == (0.125, 0.05)
    assert found["patch_embed.0.bias"] == (0.125, 0.0)
    assert found["blocks.0.qkv.weight"] == (0.25, 0.05)
    assert found["blocks.1.norm1.weight"] == (0.5, 0.0)
    assert found["norm.weight"] == found["head.bias"] == (1.0, 0.0)
    assert found["head.weight"] == (1.0, 0.05)
    assert len(groups) == 8
    assert len(found) == len(list(Vit().parameters()))


def test_the_optimizer_and_its_rates() -> None:
    optimizer = adamw(layer_groups(Vit(blocks=1), decay=0.5), lr=1.0)
    set_lr(optimizer, 0.8)
    assert {group["lr"] for group in optimizer.param_groups} == {0.2, 0.4, 0.8}
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}
