"""Histograms of oriented gradients, as MaskFeat predicts them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.targets.base import Target, check_channels
from clustermim.teachers.hog import BINS, hog, hog_size


class HOGTarget(Target):
    """The HOG of a patch (see `clustermim.teachers.hog`), regressed."""

    kind = "hog"

    def __init__(self, patch_size: int, channels: int, bins: int = BINS, cell: int | None = None) -> None:
        super().__init__()
        self.patch_size, self.channels, self.bins = patch_size, channels, bins
        self.cell, self.dim = hog_size(patch_size, channels, bins, cell)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Histograms (B, N, C·cells·bins)."""
        check_channels(self, images)
        return hog(images, self.patch_size, self.bins, self.cell)

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(prediction.to(values.dtype), values)
