"""What one step of pretraining sees: augmented images, and which of their patches are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from clustermim.data import Batch
from clustermim.errors import ConfigError
from clustermim.models import Layout, masking
from clustermim.models.masking import Draw, Mask, draw_from


@dataclass(frozen=True)
class Masking:
    """Which patches are masked, and which of those predicted.

    Args:
        masking: single patches; blocks of them as BEiT masks; or all but one block, which may go on at the opposite
            edge, as CAPI masks.
        mask_ratio: share of patches to mask; BEiT's is 0.4.
        mask_patch_size: mask squares of so many patches a side instead of single ones; SimMIM's is 2.
        predict_fraction: share of the masked patches that are decoded and scored, drawn anew each epoch; 0 is all.
    """

    masking: Literal["random", "block", "inverse-block"] = "random"
    mask_ratio: float = 0.75
    mask_patch_size: int = 0  # as 1
    predict_fraction: float = 0.0  # as 1

    def __post_init__(self) -> None:
        if self.mask_patch_size < 0:
            raise ConfigError(
                f"--mask-patch-size {self.mask_patch_size} is not a number of patches: 0 masks single ones"
            )
        if not 0 <= self.predict_fraction <= 1:
            raise ConfigError(f"--predict-fraction {self.predict_fraction} is no share: 0 to 1, where 0 predicts all")
        if self.mask_patch_size > 1 and self.masking != "random":
            raise ConfigError("--mask-patch-size is for --masking random: blocks have sizes of their own")

    def mask(self, draw: Draw, grid: tuple[int, int]) -> Mask:
        """A mask for images with a grid of patches, from random numbers of theirs."""
        if self.masking == "block":
            return masking.block_mask(draw, grid, self.mask_ratio)
        if self.masking == "inverse-block":
            return masking.inverse_block_mask(draw, grid, self.mask_ratio)
        if self.mask_patch_size > 1:
            return masking.unit_mask(draw, grid, self.mask_patch_size, self.mask_ratio)
        return masking.random_mask(draw, grid[0] * grid[1], self.mask_ratio)


class MaskedBatch(NamedTuple):
    """What one training step sees."""

    images: Tensor  # (B, C, H, W), augmented; whole numbers, which the step makes floats on its device
    labels: Tensor | None  # (B,)
    mask: Mask
    tokens: Tensor | None = None  # (B, N), or values (B, N, dim), where they are known beforehand

    def split(self, parts: int) -> list[MaskedBatch]:
        """The same in about equal parts, of a mask that hides as many patches of every image."""

        def cut(values: Tensor | None) -> Sequence[Tensor | None]:
            return [None] * parts if values is None else values.tensor_split(parts)

        images, masks = (
            self.images.tensor_split(parts),
            map(Mask, *(part.tensor_split(parts) for part in self.mask[:2])),
        )
        return list(map(MaskedBatch, images, cut(self.labels), masks, cut(self.tokens)))


@dataclass(frozen=True)
class MaskedCollator:
    """Batches of augmented images to what a step sees."""

    grid: tuple[int, int]
    masks: Masking
    tokens: Tensor | None = None  # (images, N) or (images, N, dim), of the images as they are; else those of each view
    layout: Layout = "mae"  # of the model: MixMAE's and MAGE's have masks of their own

    def __post_init__(self) -> None:
        if self.layout == "mage" and self.masks != Masking(mask_ratio=self.masks.mask_ratio):
            raise ConfigError("--layout mage has masks of its own, around --mask-ratio: leave the other options out")
        self.mask(draw_from(torch.Generator(), 1))  # a ratio that cannot be is refused before the first step

    def __call__(self, batch: Batch, draw: Draw) -> MaskedBatch:
        mask, fraction = self.mask(draw), self.masks.predict_fraction
        mask = masking.predict_part(mask, draw, fraction) if fraction else mask
        batch = batch.first(len(mask.keep))  # an image without a partner is left out
        tokens = None if self.tokens is None else self.tokens[batch.indices]
        tokens = tokens.long() if tokens is not None and tokens.ndim == 2 else tokens
        return MaskedBatch(batch.images, batch.labels, mask, tokens)

    def mask(self, draw: Draw) -> Mask:
        """A mask for the images that these random numbers belong to."""
        if self.layout == "mage":
            return masking.mage_mask(draw, self.grid[0] * self.grid[1], self.masks.mask_ratio)
        mask = self.masks.mask(draw, self.grid)
        return masking.pair_mask(mask) if self.layout == "mixmae" else mask
