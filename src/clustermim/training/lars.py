"""LARS, the optimizer of MAE's linear probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from clustermim.training.optimizer import Groups


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
