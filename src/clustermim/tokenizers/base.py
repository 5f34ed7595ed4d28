"""What a tokenizer is: images in, one id a patch out."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from clustermim.data.source import Source
from clustermim.errors import TokenizerError
from clustermim.patches import grid_size
from clustermim.teachers.base import hash_weights


class Tokenizer(torch.nn.Module, ABC):
    """Images (B, C, H, W), float32 in [0, 1], to ids (B, N), row-major over the patch grid, without gradient.

    The same image gets the same ids in any batch. `__init__` only stores; what `fit` learns ends in an underscore.

    Attributes:
        kind: the name under which the tokenizer is saved and found again.
        needs_labels: True for an oracle that is called with `tokenizer(images, labels)`.
        vocab_size: ids lie in 0 … vocab_size − 1.
        patch_size: side of a square patch in pixels.
        channels_: channels of the images it was fitted on.
        shows_means: True when the pictures of its centres are only the mean pixels of their patches.
    """

    kind: str
    needs_labels: bool = False
    vocab_size: int
    patch_size: int
    channels_: int
    shows_means: bool = False

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments of `__init__`, as JSON values."""

    def fitted(self) -> dict[str, Any]:
        """Fitted attributes that are not tensors, as JSON values."""
        return {"vocab_size": self.vocab_size, "patch_size": self.patch_size, "channels": self.channels_}

    def tensors(self) -> dict[str, Tensor]:
        """Fitted tensors by name, to be saved."""
        return {}

    @abstractmethod
    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """Take back what `fitted` and `tensors` gave."""

    @abstractmethod
    def fit(self, source: Source) -> Self:
        """Learn from a source of images."""

    @abstractmethod
    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Ids (B, N) of checked images (B, C, H, W)."""

    def version(self) -> str:
        """A hash of what its ids depend on: its weights, or of one that has none what it was made with."""
        if self.state_dict():
            return hash_weights(self)
        return hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode()).hexdigest()[:16]

    def center_patches(self) -> Tensor | None:
        """The token each id stands for as a picture in [0, 1], (vocab_size, C, p, p); None if it has none."""
        return None

    def distances(self, images: Tensor, ids: Tensor) -> Tensor | None:
        """How far patches of images (B, C, H, W) are from their tokens (B, N), in its own space; None if unknown."""
        return None

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N) of images (B, C, H, W); labels (B,) only for an oracle."""
        if images.ndim != 4 or not images.is_floating_point():
            raise TokenizerError(
                f"a tokenizer takes float images of shape (B, C, H, W), not {images.dtype} of {tuple(images.shape)}"
            )
        if not hasattr(self, "channels_"):
            raise TokenizerError(f"this {self.kind} tokenizer is not fitted: call fit(source) or load one")
        if images.shape[1] != self.channels_:
            raise TokenizerError(
                f"the tokenizer was fitted on {self.channels_}-channel images, these have {images.shape[1]}: "
                f"add ?channels={self.channels_} to the data spec"
            )
        if not torch.isfinite(images).all():
            raise TokenizerError("the images hold NaN or infinite values")
        grid_size(images.shape[2], images.shape[3], self.patch_size)
        return self.ids(images, labels)
