"""Counts of right pixels and patches of every image, their mean IoU, and bootstrap intervals over images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RESAMPLES = 1000
_AT_ONCE = 50  # resamples

Counts = NDArray[Any]


class Tally:
    """Counts of images as they come: of each class the pixels that are right, of the mask, and predicted."""

    def __init__(self) -> None:
        self._classes, self._patches = list[Counts](), list[Counts]()

    def add_pixels(self, predicted: Tensor, masks: Tensor) -> None:
        """Count predictions (B, H, W) against masks (B, H, W), whose negative pixels do not count."""
        known = masks >= 0
        classes = 1 + int(torch.maximum(predicted.max(), masks.max()))
        image = torch.arange(len(masks), device=masks.device)[:, None, None] * classes

        def count(values: Tensor, among: Tensor) -> Tensor:
            return torch.bincount((values + image)[among], minlength=len(masks) * classes).view(-1, classes)

        found = [count(masks, known & (predicted == masks)), count(masks, known), count(predicted, known)]
        self._classes.append(torch.stack(found, dim=2).to(torch.int32).cpu().numpy())  # (B, K, 3)

    def add_patches(self, predicted: Tensor, labels: Tensor) -> None:
        """Count predictions (B, N) against the classes of patches (B, N), of which negative ones do not count."""
        known = labels >= 0
        right = (known & (predicted == labels)).sum(dim=1)
        self._patches.append(torch.stack([right, known.sum(dim=1)], dim=1).cpu().numpy())  # (B, 2)

    def classes(self) -> Counts:
        """Pixels (images, K, 3): right, of the mask, predicted."""
        most = max(part.shape[1] for part in self._classes)
        return np.concatenate([np.pad(part, ((0, 0), (0, most - part.shape[1]), (0, 0))) for part in self._classes])

    def pixels(self) -> Counts:
        """Pixels (images, 2): right, and all."""
        return np.concatenate([part[..., :2].sum(axis=1) for part in self._classes])

    def patches(self) -> Counts:
        """Patches (images, 2): right, and all."""
        return np.concatenate(self._patches)


def mean_iou(counts: Counts) -> Counts:
    """The mean over classes of right / (mask + predicted − right), of counts (…, K, 3); classes without pixels not."""
    right, union = counts[..., 0], counts[..., 1] + counts[..., 2] - counts[..., 0]
    there = union > 0
    shares = np.where(there, right / np.maximum(union, 1), 0)
    with np.errstate(invalid="ignore"):
        return np.asarray(shares.sum(axis=-1) / there.sum(axis=-1))


def interval(value: Callable[[Counts], Counts], counts: Counts, seed: int) -> tuple[float, float]:
    """The 95 % interval of `value` of the sum of counts (images, …): 1,000 bootstrap resamples of the images."""
    generator, images = np.random.default_rng(seed), len(counts)
    flat, found = counts.reshape(images, -1).astype(np.float64), []
    for _ in range(RESAMPLES // _AT_ONCE):
        draws = generator.multinomial(images, np.full(images, 1 / images), size=_AT_ONCE)  # (50, images)
        found.append(value((draws @ flat).reshape(_AT_ONCE, *counts.shape[1:])))
    low, high = np.nanquantile(np.concatenate(found), (0.025, 0.975))
    return float(low), float(high)
