"""Fine-tuning's regularisers: RandAugment, soft targets (B, K), mixup, CutMix and erasing of images (B, C, H, W).

Randomness comes only from the generator that is passed, which lives on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from clustermim.data.augment import Augment
from clustermim.data.transforms import TRIES, random_boxes
from clustermim.errors import ConfigError
from clustermim.evaluation.labels import draw_seed
from clustermim.progress import log_info

ERASED_AREA = (0.02, 1 / 3)  # of the image, as Zhong et al. (2017) erase
ERASED_RATIO = (0.3, 1 / 0.3)  # width to height
GROUP = 16  # images that are mixed with one another and get the same operations; smaller groups vary more, slowly
STRONGEST = 29  # of kornia's magnitudes
OFF = "--randaugment-ops 0 turns it off"


@dataclass(frozen=True)
class MixConfig:
    """Which regularisers are used, and how strongly; 0 leaves one out.

    Args:
        mixup: α of the Beta distribution of mixup; 0 for none. With CutMix too, each 16 images get one of them.
        cutmix: α of the Beta distribution of CutMix; 0 for none.
        label_smoothing: share of the target that all classes have in common.
        erasing: probability that a box of an image is erased.
        augment: random resized crop, shifts by an eighth with mirrored borders, or none; all but none also flip.
        randaugment_ops: operations of RandAugment on each image; 0 for none.
        randaugment_magnitude: their strength, below 30.
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    label_smoothing: float = 0.1
    erasing: float = 0.25
    augment: Augment = "crop"
    randaugment_ops: int = 2
    randaugment_magnitude: int = 9

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
        images = erase(images, self.erasing, generator) if self.erasing else images
        if self.cutmix and (not self.mixup or bool(torch.rand((), generator=generator) < 0.5)):
            return cutmix_batch(images, targets, draw_beta(self.cutmix, generator), generator)
        if self.mixup:
            return mixup_batch(images, targets, draw_beta(self.mixup, generator))
        return images, targets


def soft_targets(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Labels (B,) to targets (B, K): 1 − smoothing for the class, and smoothing shared out among all K."""
    return F.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes


def mixup_batch(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """mixup: `share` of each image and target, the rest from its partner in the reversed batch; its order is random."""
    return images.lerp(images.flip(0), 1 - share), targets.lerp(targets.flip(0), 1 - share)


def cutmix_batch(images: Tensor, targets: Tensor, share: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """CutMix: a box of about 1 − `share` of the area comes from the partner; targets mix by its exact area."""
    height, width = images.shape[-2:]
    top, left, bottom, right = draw_box(height, width, 1 - share, generator)
    mixed, area = images.clone(), (bottom - top) * (right - left) / (height * width)
    mixed[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
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
    draws = torch.rand((4, count, TRIES), generator=generator, dtype=torch.float64)
    boxes = random_boxes(draws, height, width, ERASED_AREA, ERASED_RATIO)  # (B, 4)
    top, left, tall, wide = boxes[:, :, None].unbind(1)  # (B, 1) each
    rows, columns = torch.arange(height), torch.arange(width)
    inside = ((rows >= top) & (rows < top + tall))[:, :, None] & ((columns >= left) & (columns < left + wide))[:, None]
    inside &= (torch.rand(count, generator=generator) < probability)[:, None, None]  # (B, H, W)
    noise = torch.randn(int(inside.sum()) * channels, generator=generator)  # for erased pixels alone
    places = inside[:, None].expand(-1, channels, -1, -1).to(images.device)  # (B, C, H, W)
    return images.masked_scatter(places, noise.to(images))


def draw_beta(alpha: float, generator: Generator) -> float:
    """A number from Beta(α, α), by numpy: torch's own takes no generator."""
    return float(np.random.default_rng(draw_seed(generator)).beta(alpha, alpha))


class RandAugment:
    """Images (B, C, H, W) in [0, 1] to changed ones, the same for the same seed."""

    def __init__(self, operations: int, magnitude: int, channels: int) -> None:
        from kornia.augmentation import auto  # slow to import
        from kornia.augmentation.auto.rand_augment.rand_augment import default_policy

        policy = [part for part in default_policy if channels == 3 or part[0][0] != "color"]
        for name, value, most in (("ops", operations, len(policy)), ("magnitude", magnitude, STRONGEST)):
            if not 1 <= value <= most:
                raise ConfigError(f"--randaugment-{name} {value} is not between 1 and {most}; {OFF}")
        if channels != 3:
            log_info(f"RandAugment leaves saturation out for images of {channels} channels; {OFF}")
        self.policy: Any = auto.RandAugment(operations, magnitude, policy)

    @torch.no_grad()
    def __call__(self, images: Tensor, seed: int) -> Tensor:
        # kornia draws from the global generator of the CPU, which is put back for drop path; in the main thread only
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.policy(images).clamp_(0, 1)  # type: ignore[no-any-return]
