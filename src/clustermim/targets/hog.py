"""Histograms of oriented gradients, as MaskFeat predicts them."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from clustermim.data import Source
from clustermim.patches import DEFAULT_PATCH_SIZE
from clustermim.targets.base import Target, TargetOptions
from clustermim.teachers.hog import BINS, hog, hog_size


class HOGTarget(Target):
    """The HOG of a patch (see `clustermim.teachers.hog`), regressed."""

    kind = "hog"

    def __init__(self, patch_size: int, channels: int, bins: int = BINS, cell: int | None = None) -> None:
        super().__init__()
        self.patch_size, self.channels, self.bins = patch_size, channels, bins
        self.cell, self.dim = hog_size(patch_size, channels, bins, cell)

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        return cls(patch_size or DEFAULT_PATCH_SIZE, source.shape[0])

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Histograms (B, N, C·cells·bins)."""
        self.check_channels(images)
        return hog(images, self.patch_size, self.bins, self.cell)
