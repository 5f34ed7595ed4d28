"""Features of a teacher, as MaskFeat predicts them."""

from __future__ import annotations

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source
from clustermim.errors import ConfigError
from clustermim.patches import DEFAULT_PATCH_SIZE, grid_size
from clustermim.targets.base import Target, TargetOptions
from clustermim.teachers import Teacher, open_teacher


class FeatureTarget(Target):
    """What a teacher, who sees the whole image, says of a patch, regressed.

    MaskFeat normalises each feature vector by its L2 length; layer normalisation, the other custom, would also subtract
    the mean of its entries. Here as in MaskFeat, but to the length √dim: entries are then about 1, as normalised pixels
    are, and the mean squared error is ‖prediction/√dim − feature/‖feature‖‖², which is 1 for predictions of zero
    whatever the width. What all images have in common at a position stays in.
    """

    kind = "features"
    takes = ("teacher",)

    def __init__(self, teacher: Teacher, patch_size: int) -> None:
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.patch_size, self.channels, self.dim = patch_size, teacher.channels, teacher.dim

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        if options.teacher is None:
            raise ConfigError("--target features needs --teacher, such as run:FOLDER of an encoder pretrained here")
        return cls(open_teacher(options.teacher), patch_size or DEFAULT_PATCH_SIZE)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Features (B, N, dim), each of length √dim; one that is zero stays zero."""
        grid = grid_size(images.shape[2], images.shape[3], self.patch_size)
        found = self.teacher(images, grid)  # (B, N, dim)
        return F.normalize(found.float(), dim=-1) * math.sqrt(self.dim)

    def version(self) -> str:
        return self.teacher.version()
