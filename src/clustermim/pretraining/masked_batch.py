"""What one step of pretraining sees: augmented images, and which of their patches are masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from clustermim.data import Batch
from clustermim.data.augment import Augment, augmented
from clustermim.errors import ConfigError
from clustermim.models.masking import Mask, block_mask, random_mask, unit_mask


@dataclass(frozen=True)
class Masking:
    """Which patches are masked.

    Args:
        masking: single patches, or blocks of them as BEiT masks.
        mask_ratio: share of patches to mask; BEiT's is 0.4.
        mask_patch_size: mask squares of so many patches a side instead of single ones; SimMIM's is 2.
    """

    masking: Literal["random", "block"] = "random"
    mask_ratio: float = 0.75
    mask_patch_size: int = 0  # as 1

    def __post_init__(self) -> None:
        if self.mask_patch_size < 0:
            raise ConfigError(
                f"--mask-patch-size {self.mask_patch_size} is not a number of patches: 0 masks single ones"
            )
        if self.mask_patch_size > 1 and self.masking == "block":
            raise ConfigError("--mask-patch-size is for --masking random: blocks have sizes of their own")

    def mask(self, count: int, grid: tuple[int, int], generator: torch.Generator) -> Mask:
        """A mask for so many images with a grid of patches."""
        if self.masking == "block":
            return block_mask(count, grid, self.mask_ratio, generator)
        if self.mask_patch_size > 1:
            return unit_mask(count, grid, self.mask_patch_size, self.mask_ratio, generator)
        return random_mask(count, grid[0] * grid[1], self.mask_ratio, generator)


class MaskedBatch(NamedTuple):
    """What one training step sees."""

    images: Tensor  # (B, C, H, W) float32 in [0, 1], augmented
    labels: Tensor | None  # (B,)
    mask: Mask
    tokens: Tensor | None = None  # (B, N), where they are known beforehand


@dataclass(frozen=True)
class MaskedCollator:
    """Batches of a source to views; all that is random comes from the generator."""

    grid: tuple[int, int]
    augment: Augment
    masks: Masking
    tokens: Tensor | None = None  # (images, N), of the images as they are; without, the target gives those of each view

    def __post_init__(self) -> None:
        self.mask(1, torch.Generator())  # a ratio that cannot be is refused before the first step

    def __call__(self, batch: Batch, generator: torch.Generator) -> MaskedBatch:
        images = augmented(batch.images, self.augment, generator)
        tokens = None if self.tokens is None else self.tokens[batch.indices].long()
        return MaskedBatch(images, batch.labels, self.mask(len(images), generator), tokens)

    def mask(self, count: int, generator: torch.Generator) -> Mask:
        """A mask for so many images."""
        return self.masks.mask(count, self.grid, generator)
