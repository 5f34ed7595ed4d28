"""The same image in another light: brightness, contrast, saturation and the order of channels, at random."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

REACH = 0.5  # brightness and contrast change by up to this share


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
