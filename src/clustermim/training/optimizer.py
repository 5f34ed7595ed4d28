"""AdamW as masked pretraining uses it: what decays, and the learning rate of every step and layer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from clustermim.errors import ConfigError

# A position or a learned token marks something; decay would pull the mark towards zero.
NO_DECAY = ("pos_embed", "cls_token", "reg_token", "mask_token", "mix_embed", "prototypes")

Groups = list[dict[str, Any]]


def scaled_lr(base_lr: float, batch: int) -> float:
    """The peak learning rate for a batch, all ranks and accumulated parts together: base_lr · batch / 256."""
    return base_lr * batch / 256


def lr_at(
    step: int,
    *,
    lr: float,
    total_steps: int,
    warmup_steps: int = 0,  # a schedule without warm-up is the simpler thing; stages ask for theirs
    min_lr: float = 0.0,  # as MAE: the last steps average the noise out
) -> float:
    """The learning rate of step 0, 1, …: a line up to `lr`, then half a cosine down to `min_lr` at `total_steps`.

    Warm-up lr·(s+1)/w, so that no step is spent on a rate of zero; then
    min + (lr − min)·(1 + cos π(s−w)/(T−w))/2.
    """
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    way = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, way)))


def parameter_groups(
    model: nn.Module,
    weight_decay: float = 0.05,  # MAE's, BEiT's and the paper's
) -> Groups:
    """Two groups: matrices and kernels decay; biases, norms, class and mask tokens and positions do not."""
    return _grouped(model, weight_decay, {name: 1.0 for name, _ in model.named_parameters()})


def layer_groups(
    model: nn.Module,
    decay: float,
    weight_decay: float = 0.05,  # as in pretraining
) -> Groups:
    """Groups for fine-tuning a ViT with timm's names: layer i of n learns at `decay`^(n−i) of the learning rate.

    Layer 0 is patch_embed, class token and positions, layer i+1 is blocks.i, and the last is the rest: norm, head.
    """
    layers = {name: _layer(name) for name, _ in model.named_parameters()}
    last = 1 + max((layer for layer in layers.values() if layer is not None), default=0)
    scales = {name: decay ** (last - (last if layer is None else layer)) for name, layer in layers.items()}
    return _grouped(model, weight_decay, scales)


def adamw(
    groups: Groups,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),  # a short memory of squared gradients, as MAE pretrains
) -> AdamW:
    """AdamW, for groups with their own weight decay."""
    # fused: one kernel instead of ten small ones for every tensor
    return AdamW(groups, lr=lr, betas=betas, fused=True)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Give every group its share of a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def decays(name: str, dimensions: int) -> bool:
    """Whether weight decay acts on a parameter."""
    return dimensions >= 2 and not any(part in name for part in NO_DECAY)


def _layer(name: str) -> int | None:
    """The layer of a parameter; None for what comes after the last block."""
    block = re.search(r"(?:^|\.)blocks\.(\d+)\.", name)
    if block:
        return int(block[1]) + 1
    first: Iterable[str] = ("patch_embed.", *NO_DECAY)
    return 0 if any(part in name for part in first) else None


def _grouped(model: nn.Module, weight_decay: float, scales: dict[str, float]) -> Groups:
    """Parameters of equal decay and scale together, in the order of their first appearance; `names` are for readers."""
    if not weight_decay >= 0:
        raise ConfigError(f"--weight-decay {weight_decay:g} would let weights grow: 0 at least")
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        key = (weight_decay if decays(name, parameter.ndim) else 0.0, scales[name])
        group = groups.setdefault(key, {"params": [], "names": [], "weight_decay": key[0], "lr_scale": key[1]})
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


class LARS(Optimizer):
    """SGD with momentum whose step on a matrix is a share of its norm (You et al., 2017), as MAE uses it:

    u = g + weight_decay·w;  u ← u · trust·‖w‖/‖u‖;  m ← momentum·m + u;  w ← w − lr·m

    The second is left out where a norm is 0. Vectors, such as biases, neither decay nor are scaled.
    """

    def __init__(
        self, groups: Groups, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step from the gradients that are there; training has no use for a closure."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update = weight.grad
                if weight.ndim > 1:
                    update = update + group["weight_decay"] * weight
                    norms = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(update)
                    share = group["trust"] * norms[0] / norms[1]
                    update = update * torch.where((norms[0] > 0) & (norms[1] > 0), share, 1.0)
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                state["momentum_buffer"].mul_(group["momentum"]).add_(update)
                weight.sub_(group["lr"] * state["momentum_buffer"])
