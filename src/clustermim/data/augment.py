"""The random views that training sees, and those by which a score knows an image again."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

from clustermim.data.randomness import ImageRandom
from clustermim.data.source import Batch, Rows, Source, to_float
from clustermim.data.transforms import TRIES, flip, random_boxes, resize_boxes, shift

Augment = Literal["crop", "pad-crop", "none"]

PADDING = 8  # one pixel of shift for so many of the shorter side: 4 at 32 pixels, as is usual for CIFAR
REACH = 0.5  # brightness and contrast change by up to this share


def read_augmented(source: Source, rows: Rows, augment: Augment, seed: int, epoch: int) -> Batch:
    """The images at these positions as an epoch sees them: cropped or shifted, and flipped; still whole numbers."""
    if augment == "crop":
        return source.read_crops(rows, ImageRandom(seed, epoch, source.rows(rows)))
    batch = source.read(rows)
    if augment == "none" or not len(batch.images):
        return batch
    random, most = ImageRandom(seed, epoch, batch.indices.numpy(), stream=1), min(source.shape[1:]) // PADDING
    images = shift(batch.images, (random(2) * (2 * most + 1)).floor().long() - most)
    return batch._replace(images=flip(images, random(1)[:, 0] < 0.5))


def random_view(images: Tensor, generator: Generator) -> Tensor:
    """Images (B, C, H, W) in bytes to float in [0, 1]: cropped, flipped and in another light, to be known again."""
    count, _, height, width = images.shape
    draws = torch.rand((4, count, TRIES), generator=generator, dtype=torch.float64)
    crops = resize_boxes(to_float(images), random_boxes(draws, height, width), (height, width))
    flipped = flip(crops, torch.rand(count, generator=generator) < 0.5)
    return color_jitter(flipped, generator)


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
