"""What a target is: what the decoder predicts of a masked patch, and its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from clustermim.errors import DataError
from clustermim.teachers.base import hash_weights


class Target(torch.nn.Module, ABC):
    """Images (B, C, H, W), float32 in [0, 1], to what is predicted of each patch, row-major over the grid.

    Ids (B, N) or values (B, N, dim), without gradient. It is no part of the model: nothing in it is learned.

    Attributes:
        kind: the name under which it is found in `TARGETS`.
        dim: width of the head that predicts it.
        patch_size: side of a square patch in pixels.
        channels: channels of the images it takes.
        needs_labels: True when it is called with `target(images, labels)`.
    """

    kind: str
    dim: int
    patch_size: int
    channels: int
    needs_labels: bool = False

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N) or values (B, N, dim) of all patches; labels (B,) only for an oracle."""

    def version(self) -> str:
        """A hash of what it depends on, so that a run is not continued with another."""
        return hash_weights(self)

    @abstractmethod
    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean loss of predictions (B, m, dim) of m masked patches, whose targets are (B, m) or (B, m, dim)."""


def select(values: Tensor, indices: Tensor) -> Tensor:
    """The patches at indices (B, m) of values (B, N) or (B, N, D): (B, m) or (B, m, D)."""
    places = indices.reshape(*indices.shape, *[1] * (values.ndim - 2))
    return values.gather(1, places.expand(*indices.shape, *values.shape[2:]))


def check_channels(target: Target, images: Tensor) -> None:
    if images.shape[1] != target.channels:
        raise DataError(
            f"the {target.kind} target is for {target.channels}-channel images, these have {images.shape[1]}: "
            f"add ?channels={target.channels} to the data spec"
        )
