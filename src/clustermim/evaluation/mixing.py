"""Fine-tuning's regularisers on a batch: soft targets, mixup, CutMix and random erasing.

Images are float (B, C, H, W), targets (B, K) with rows that sum to 1. Randomness comes only from the generator
that is passed, which lives on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from clustermim.data.transforms import random_boxes
from clustermim.errors import ConfigError

ERASED_AREA = (0.02, 1 / 3)  # of the image, as Zhong et al. (2017) erase
ERASED_RATIO = (0.3, 1 / 0.3)  # width to height


@dataclass(frozen=True)
class MixConfig:
    """Which of them are used, and how strongly; 0 leaves one out."""

    mixup: float  # α of Beta(α, α)
    cutmix: float  # α of Beta(α, α)
    label_smoothing: float
    erasing: float  # the probability that an image loses a box

    def __post_init__(self) -> None:
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not 0 <= alpha < math.inf:
                raise ConfigError(f"--{name} {alpha} is not the α of a Beta distribution: 0 for none, or above")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {self.label_smoothing} is not between 0 and 1")
        if not 0 <= self.erasing <= 1:
            raise ConfigError(f"--erasing {self.erasing} is not a probability")

    def __call__(self, images: Tensor, labels: Tensor, classes: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Normalised images and labels (B,) to what a step is to see, and the targets (B, K)."""
        targets = soft_targets(labels, classes, self.label_smoothing)  # (B, K)
        if self.erasing:
            images = erase(images, self.erasing, generator)
        # With both, each gets half of the batches: mixing both ways at once would leave little to see.
        cut = bool(self.cutmix) and (not self.mixup or bool(torch.rand((), generator=generator) < 0.5))
        if cut:
            return cutmix_batch(images, targets, draw_beta(self.cutmix, generator), generator)
        if self.mixup:
            return mixup_batch(images, targets, draw_beta(self.mixup, generator))
        return images, targets


def soft_targets(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Labels (B,) to targets (B, K): 1 − smoothing for the class, and smoothing shared out among all K."""
    return F.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes


def mixup_batch(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """mixup: `share` of each image and target, and the rest from its partner in the reversed batch.

    The order of a batch is random already, so that its reverse is as good as any permutation.
    """
    return images.lerp(images.flip(0), 1 - share), targets.lerp(targets.flip(0), 1 - share)


def cutmix_batch(images: Tensor, targets: Tensor, share: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """CutMix: a box of about 1 − `share` of the area comes from the partner; targets mix by its exact area."""
    height, width = images.shape[-2:]
    top, left, bottom, right = draw_box(height, width, 1 - share, generator)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
    area = (bottom - top) * (right - left) / (height * width)
    return mixed, targets.lerp(targets.flip(0), area)


def draw_box(height: int, width: int, area: float, generator: Generator) -> tuple[int, int, int, int]:
    """Top, left, bottom and right of a box of this share of an image, around any of its pixels and cut at its edges."""
    tall, wide = (round(side * math.sqrt(area)) for side in (height, width))
    draws = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    top, left = int(draws[0] * height) - tall // 2, int(draws[1] * width) - wide // 2
    return max(top, 0), max(left, 0), min(top + tall, height), min(left + wide, width)


def erase(images: Tensor, probability: float, generator: Generator) -> Tensor:
    """Fill a random box of some images with noise; normalised images, so that the noise has their mean and spread."""
    count, channels, height, width = images.shape
    boxes = random_boxes(count, height, width, generator, ERASED_AREA, ERASED_RATIO)  # (B, 4)
    top, left, tall, wide = boxes[:, :, None].unbind(1)  # (B, 1) each
    rows, columns = torch.arange(height), torch.arange(width)
    inside = ((rows >= top) & (rows < top + tall))[:, :, None] & ((columns >= left) & (columns < left + wide))[:, None]
    chosen = torch.rand(count, generator=generator) < probability
    inside &= chosen[:, None, None]  # (B, H, W)
    noise = torch.randn(int(inside.sum()) * channels, generator=generator)  # for erased pixels alone
    places = inside[:, None].expand(-1, channels, -1, -1).to(images.device)  # (B, C, H, W)
    return images.masked_scatter(places, noise.to(images))


def draw_beta(alpha: float, generator: Generator) -> float:
    """A number from Beta(α, α), by numpy: torch's own takes no generator."""
    return float(np.random.default_rng(draw_seed(generator)).beta(alpha, alpha))


def draw_seed(generator: Generator) -> int:
    """A seed for a generator of another kind."""
    return int(torch.randint(2**62, (), generator=generator))
