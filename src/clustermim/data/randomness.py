"""Random numbers of images: they depend on seed, epoch and image, not on the batch, the ranks or the workers."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood, 2014): its state is a counter, so that any number of any image is found at once.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


class ImageRandom:
    """Uniform numbers in [0, 1) of some images; every call continues their streams.

    Args:
        seed, epoch: of the training.
        images: (B,) positions in their source.
        stream: one for each use, so that the numbers of one do not depend on how many another takes.
    """

    def __init__(self, seed: int, epoch: int, images: NDArray[np.int64], stream: int = 0) -> None:
        (self._start,) = np.random.SeedSequence((seed, epoch, stream)).generate_state(1, np.uint64)
        self._keys = _mixed(_mixed(images.astype(np.uint64) * _STEP) + self._start)[:, None]  # (B, 1)
        self._drawn = 0

    def __call__(self, count: int) -> Tensor:
        """The next numbers (B, count) of each image, float64."""
        places = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64)
        self._drawn += count
        bits = _mixed(self._keys + places * _STEP) >> np.uint64(11)  # 53 of them
        return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)

    def seeds(self, group: int) -> list[int]:
        """A seed for each so many images in turn: for what concerns them together, such as mixing them."""
        sums = np.add.reduceat(self._keys[:, 0], np.arange(0, len(self._keys), group))
        return (_mixed(sums + self._start) >> np.uint64(1)).tolist()  # type: ignore[no-any-return]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for bits, factor in _ROUNDS:
        numbers = (numbers ^ (numbers >> np.uint64(bits))) * factor
    return numbers ^ (numbers >> np.uint64(31))
