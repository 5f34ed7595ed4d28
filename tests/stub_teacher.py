"""A small teacher for tests: a random mixture of the mean colours of small squares."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.teachers import Teacher


class StubTeacher(Teacher):
    """Features of squares of `stride` pixels; the dropout shows whether it is in training mode."""

    def __init__(self, channels: int = 3, dim: int = 5, stride: int = 2) -> None:
        super().__init__()
        self.spec, self.channels, self.dim, self.stride = "stub", channels, dim, stride
        self.mix = nn.Parameter(torch.randn(dim, channels, generator=torch.Generator().manual_seed(0)))
        self.dropout = nn.Dropout(0.5)

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        cells = F.avg_pool2d(images, self.stride)  # (B, C, h, w)
        out: Tensor = self.dropout(torch.einsum("dc,bchw->bdhw", self.mix, cells))  # (B, dim, h, w)
        return out
