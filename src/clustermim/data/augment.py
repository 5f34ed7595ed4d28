"""The random views that training sees: bytes in, float32 in [0, 1] out."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

from clustermim.data.source import to_float
from clustermim.data.transforms import random_flip, random_pad_crop, random_resized_crop

Augment = Literal["crop", "pad-crop", "none"]

PADDING = 8  # one pixel of padding for so many of the shorter side: 4 at 32 pixels, as is usual for CIFAR
REACH = 0.5  # brightness and contrast change by up to this share


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


def color_jitter(images: Tensor, generator: Generator) -> Tensor:
    """Images (B, C, H, W) in [0, 1], each in a light of its own, (B, C, H, W) in [0, 1]; places stay.

    What they show is the same, and what their pixels have in common is not: contrast and brightness by factors within
    1 ± REACH, saturation by one from 0 to 1 + REACH, then any order of the channels.
    """

    def factors(low: float) -> Tensor:
        return torch.rand(len(images), 1, 1, 1, generator=generator) * (1 + REACH - low) + low  # (B, 1, 1, 1)

    middle = images.mean((1, 2, 3), keepdim=True)  # (B, 1, 1, 1)
    lit = (images - middle) * factors(1 - REACH) + middle * factors(1 - REACH)
    grey = lit.mean(1, keepdim=True)  # (B, 1, H, W)
    lit = grey + (lit - grey) * factors(0)
    order = torch.rand(images.shape[:2], generator=generator).argsort(1)  # (B, C)
    return lit.gather(1, order[:, :, None, None].expand_as(lit)).clamp(0, 1)
