"""What a target is: what the decoder predicts of a masked patch, and its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source
from clustermim.errors import DataError
from clustermim.teachers.base import hash_weights

PixelLoss = Literal["l1"]


@dataclass(frozen=True)
class TargetOptions:
    """How the targets are made; each takes the options that it names.

    Args:
        tokenizer: the folder of a fitted tokenizer or `module:package.module:factory`, for tokens.
        teacher: whose features to predict, such as `run:FOLDER` for an encoder pretrained here.
        normalize_pixels: predict pixels normalised by the mean and spread of their patch.
        pixel_loss: `l1` is the mean absolute error, as in SimMIM; by default the error is squared.
        label_smoothing: of the cross-entropy of tokens.
    """

    tokenizer: str | None = None
    teacher: str | None = None
    normalize_pixels: bool = False
    pixel_loss: PixelLoss | None = None
    label_smoothing: float = 0.0


class Target(torch.nn.Module, ABC):
    """Images (B, C, H, W), float32 in [0, 1], to what is predicted of each patch, row-major over the grid.

    Ids (B, N) or values (B, N, dim), without gradient. It is no part of the model: nothing in it is learned.

    Attributes:
        kind: the name under which it is found in `TARGETS`.
        takes: the fields of `TargetOptions` that it uses.
        dim: width of the head that predicts it.
        patch_size: side of a square patch in pixels.
        channels: channels of the images it takes.
        needs_labels: True when it is called with `target(images, labels)`.
    """

    kind: str
    takes: tuple[str, ...] = ()
    dim: int
    patch_size: int
    channels: int
    needs_labels: bool = False

    @classmethod
    @abstractmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        """The target for the images of a source; `patch_size` is None where nobody has chosen one."""

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N) or values (B, N, dim) of all patches; labels (B,) only for an oracle."""

    def version(self) -> str:
        """A hash of what it depends on, so that a run is not continued with another."""
        return hash_weights(self)

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean squared error of predictions (B, m, dim) of m masked patches, whose values are (B, m, dim)."""
        return F.mse_loss(prediction.to(values.dtype), values)

    def check_channels(self, images: Tensor) -> None:
        """Refuse images (B, C, H, W) of another number of channels."""
        if images.shape[1] != self.channels:
            raise DataError(
                f"the {self.kind} target is for {self.channels}-channel images, these have {images.shape[1]}: "
                f"add ?channels={self.channels} to the data spec"
            )


def select(values: Tensor, indices: Tensor) -> Tensor:
    """The patches at indices (B, m) of values (B, N) or (B, N, D): (B, m) or (B, m, D)."""
    places = indices.reshape(*indices.shape, *[1] * (values.ndim - 2))
    return values.gather(1, places.expand(*indices.shape, *values.shape[2:]))
