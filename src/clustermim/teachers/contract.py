"""What a teacher is: images in, features of their patches out."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import TeacherError


class Teacher(torch.nn.Module, ABC):
    """A frozen network that describes patches.

    Images are (B, C, H, W), float32 in [0, 1]; their size and normalisation are the teacher's own affair. Features come
    on the grid that is asked for, the teacher's own grid being resampled to it.

    Attributes:
        spec: the text that `open_teacher` made it from.
        dim: width of its features.
        channels: channels of the images it takes.
        bears_position: True where features also say where in the image they are, as those of a ViT do.
    """

    spec: str
    dim: int
    channels: int
    bears_position: bool = True

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Features (B, dim, h, w) of checked images (B, C, H, W), on the teacher's own grid h × w."""

    @torch.no_grad()
    def forward(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        """Features (B, rows·columns, dim), row-major over the grid (rows, columns)."""
        self.check(images)
        found = self.features(images)  # (B, dim, h, w)
        if found.shape[2:] != grid:
            found = resample(found, grid)
        return found.flatten(2).transpose(1, 2)

    def check(self, images: Tensor) -> None:
        """Refuse images of another number of channels."""
        if images.shape[1] != self.channels:
            raise TeacherError(
                f"the teacher {self.spec} takes {self.channels}-channel images, these have {images.shape[1]}: "
                f"add ?channels={self.channels} to the data spec"
            )

    def fingerprint(self) -> str:
        """A hash of all its weights, to notice that a name stands for other weights than before."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def resample(features: Tensor, grid: tuple[int, int]) -> Tensor:
    """Features (B, D, h, w) on another grid: means of what a patch covers where it is coarser, else bilinear."""
    if features.shape[2] % grid[0] == 0 and features.shape[3] % grid[1] == 0:
        return F.adaptive_avg_pool2d(features, grid)
    return F.interpolate(features, grid, mode="bilinear", align_corners=False, antialias=True)
