"""The random views that training sees: bytes in, float32 in [0, 1] out."""

from __future__ import annotations

from typing import Literal

from torch import Generator, Tensor

from clustermim.data.color_jitter import color_jitter
from clustermim.data.source import to_float
from clustermim.data.transforms import random_flip, random_pad_crop, random_resized_crop

Augment = Literal["crop", "pad-crop", "none"]

PADDING = 8  # one pixel of padding for so many of the shorter side: 4 at 32 pixels, as is usual for CIFAR


def augmented(images: Tensor, augment: Augment, generator: Generator) -> Tensor:
    """Images (B, C, H, W) in bytes to float in [0, 1], cropped and flipped."""
    height, width = images.shape[-2:]
    if augment == "crop":
        return random_flip(random_resized_crop(to_float(images), (height, width), generator), generator)
    if augment == "pad-crop":
        return to_float(random_flip(random_pad_crop(images, min(height, width) // PADDING, generator), generator))
    return to_float(images)


def random_view(images: Tensor, generator: Generator) -> Tensor:
    """Images (B, C, H, W) in bytes to float in [0, 1]: cropped, flipped and in another light, to be known again."""
    return color_jitter(augmented(images, "crop", generator), generator)
