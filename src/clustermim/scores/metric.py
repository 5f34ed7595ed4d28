"""TCAS as a torchmetrics class, for a training loop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from clustermim.errors import ConfigError, DataError
from clustermim.scores.spectral import count_into
from clustermim.scores.tcas import Diag, Empty, Norm, TCASVariant, tcas


class TCAS(Metric):
    """TCAS of all patches seen so far, for a training loop that wants this one number.

    update: tokens (B, N) int64, labels (B,) int64. compute: a scalar tensor. State: (vocab_size, num_classes)
    int64, a sum, so that it streams and synchronises across ranks. The options are those of `clustermim.scores.tcas`.

    >>> metric = TCAS(vocab_size=2, num_classes=2)
    >>> metric.update(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0, 1]))
    >>> float(metric.compute())
    0.0
    """

    full_state_update = False
    higher_is_better = False
    is_differentiable = False
    counts: Tensor

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        norm: Norm = "plain",
        diag: Diag = "C",
        tau: float = 1.0,
        empty: Empty = "drop",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, size in (("vocab_size", vocab_size), ("num_classes", num_classes)):
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, not {size}")
        self.variant = TCASVariant(norm, diag, tau, empty)
        zeros = torch.zeros(vocab_size, num_classes, dtype=torch.int64)
        self.add_state("counts", zeros, dist_reduce_fx="sum")

    def update(self, tokens: Tensor, labels: Tensor) -> None:
        """Count a batch: tokens (B, N), labels (B,)."""
        vocab_size, num_classes = self.counts.shape
        if tokens.ndim != 2:
            raise DataError(f"tokens must have shape (images, patches), not {tuple(tokens.shape)}")
        if labels.shape != tokens.shape[:1]:
            raise DataError(f"labels must have shape {tuple(tokens.shape[:1])}, not {tuple(labels.shape)}")
        for name, ids, below in (("tokens", tokens, vocab_size), ("labels", labels, num_classes)):
            if ids.dtype != torch.int64:
                raise DataError(f"{name} must be int64, not {ids.dtype}")
            if ids.numel() and (ids.min() < 0 or ids.max() >= below):
                raise DataError(f"{name} must lie in 0..{below - 1}, found {int(ids.min())}..{int(ids.max())}")
        count_into(self.counts, tokens * num_classes + labels[:, None])

    def compute(self) -> Tensor:
        """The score, a scalar of torch's default type."""
        return torch.tensor(tcas(self.counts, **asdict(self.variant)), device=self.counts.device)
