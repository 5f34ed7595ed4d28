"""What a teacher is: images in, features of their patches out."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from itertools import chain
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import TeacherError
from clustermim.patches import check_channels

PORTION = 16  # images that a teacher sees at a time on a CPU, whose caches they fill
LARGE_PORTION = 256  # the same elsewhere


class Teacher(torch.nn.Module, ABC):
    """A frozen network that describes patches.

    Images are (B, C, H, W), float32 in [0, 1]; their size and normalisation are the teacher's own affair. Features come
    on the grid that is asked for, the teacher's own grid being resampled to it.
    """

    spec: str  # the text that `open_teacher` made it from
    dim: int  # width of its features
    channels: int  # of the images it takes
    has_position: bool = True  # whether features also say where in the image they are, as those of a ViT do
    code: str = ""  # a hash of the code of a teacher that is a user's own function

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.empty(0), persistent=False)  # so that one without weights can be moved

    @abstractmethod
    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Features (B, dim, h, w) of checked images (B, C, H, W), on the teacher's own grid h × w; with gradients.

        `grid` is the one that they will be resampled to, for a teacher that has none of its own.
        """

    @torch.no_grad()
    def forward(self, images: Tensor, grid: tuple[int, int]) -> Tensor:
        """Features (B, rows·columns, dim), row-major over the grid (rows, columns).

        Every portion has the same number of images, the last one being filled up: a matrix product of another number
        of rows may round otherwise. Features lie on the device of the images.
        """
        self.check(images)
        found, device = [], device_of(self) or images.device
        size = PORTION if device.type == "cpu" else LARGE_PORTION
        for start in range(0, len(images), size):
            portion = images[start : start + size]
            filled = F.pad(portion, (0, 0, 0, 0, 0, 0, 0, size - len(portion)))  # (size, C, H, W)
            values = self.features(filled.to(device), grid)[: len(portion)].float()  # (b, dim, h, w)
            values = values if values.shape[2:] == grid else resample(values, grid)  # (b, dim, rows, columns)
            found.append(values.flatten(2).transpose(1, 2).to(images.device))  # (b, rows·columns, dim)
        features = torch.cat(found) if found else images.new_empty(0, grid[0] * grid[1], self.dim)
        if features.device.type == "cpu" and not torch.isfinite(features).all():  # a GPU would have to wait
            raise TeacherError(f"the teacher {self.spec} gives NaN or infinite features: its weights are damaged")
        return features

    def check(self, images: Tensor) -> None:
        """Refuse images of another number of channels."""
        check_channels(images, self.channels, f"the teacher {self.spec} takes", TeacherError)

    def train(self, mode: bool = True) -> Self:
        """A teacher stays as it is, whatever it is part of: no dropout, no running statistics."""
        return super().train(False)

    def version(self) -> str:
        """What its features depend on besides its text, to name features that are kept."""
        return hash_weights(self) + self.code


def hash_weights(module: torch.nn.Module) -> str:
    """Sixteen hex digits of the sha256 of all parameters and buffers of a module, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def device_of(module: torch.nn.Module) -> torch.device | None:
    """Where the weights of a module are; None of one that has none, and works where its input is."""
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return None if tensor is None else tensor.device


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) in [0, 1] brought to another size, whole: a grid of patches must still cover them."""
    if tuple(images.shape[2:]) == size:
        return images
    return F.interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)


def resample(features: Tensor, grid: tuple[int, int]) -> Tensor:
    """Features (B, D, h, w) on another grid: means of what a patch covers where it is coarser, else bilinear."""
    if features.shape[2] % grid[0] == 0 and features.shape[3] % grid[1] == 0:
        return F.adaptive_avg_pool2d(features, grid)
    return F.interpolate(features, grid, mode="bilinear", align_corners=False, antialias=True)


def to_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (B, h·w, D), row-major over a grid h × w, as a map (B, D, h, w)."""
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)
