"""The contract between stored images and everything that reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data.prefetch import prefetch
from clustermim.errors import DataError


class Batch(NamedTuple):
    """Some images of a source, in the order they were asked for (unreadable ones may be left out)."""

    images: Tensor  # (B, C, H, W) uint8
    labels: Tensor | None  # (B,) int64
    indices: Tensor  # (B,) int64, positions in the source

    def first(self, count: int) -> Batch:
        """The first so many of them."""
        return Batch(self.images[:count], None if self.labels is None else self.labels[:count], self.indices[:count])


class Source(ABC):
    """A map-style set of uint8 images of one shape, with optional labels.

    Attributes:
        spec: the text that opens this source again.
        shape: (C, H, W) of every image.
        labels: one class id an image, or None.
        class_names: names of the classes, by id; empty without labels.
        fingerprint: a short hash, the same for the same images, labels and options on any machine.
        skipped: what could not be read and why, by file name (filled while reading, `on_bad_image=skip`).
    """

    spec: str
    shape: tuple[int, int, int]
    labels: NDArray[np.int64] | None
    class_names: tuple[str, ...]
    fingerprint: str
    skipped: dict[str, str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The images at these positions."""

    def __getitem__(self, index: int) -> tuple[Tensor, int | None]:
        """One image (C, H, W) uint8 and its label."""
        batch = self.read([index])
        if not len(batch.images):
            raise DataError(f"{self.spec}: image {index} cannot be read ({'; '.join(self.skipped.values())})")
        return batch.images[0], None if batch.labels is None else int(batch.labels[0])

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        skip: int = 0,
        among: NDArray[np.bool_] | None = None,
    ) -> Iterator[Batch]:
        """All images once, in order, or shuffled when a seed is given, read ahead in the background.

        With `world` > 1 each rank gets every `world`-th image of the same order. The first `skip` batches are left out.
        Of a part of the images, those that are true in `among` (n,).
        """
        order = np.arange(len(self)) if seed is None else self.shuffle(seed)
        order = (order if among is None else order[among[order]])[rank::world_size]
        chunks = (order[start : start + batch_size] for start in range(skip * batch_size, len(order), batch_size))
        return (batch for batch in prefetch(map(self.read, chunks)) if len(batch.images))

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """All positions in the random order of a seed."""
        return np.random.default_rng(seed).permutation(len(self))

    def take_labels(self, indices: Sequence[int] | NDArray[np.int64]) -> Tensor | None:
        """Labels at these positions, or None for an unlabelled source."""
        return None if self.labels is None else torch.from_numpy(self.labels[np.asarray(indices)])

    def __repr__(self) -> str:
        shape, classes = "×".join(map(str, self.shape)), len(self.class_names)
        labels = "no labels" if self.labels is None else f"{classes} class{'es' * (classes != 1)}"
        return f"<{type(self).__name__} {self.spec}: {len(self):,} images of {shape}, {labels}>"

    def describe(self) -> dict[str, Any]:
        """What a summary says of its data."""
        return {
            "spec": self.spec,
            "fingerprint": self.fingerprint,
            "images": len(self),
            "shape": list(self.shape),
            "classes": len(self.class_names),
            "skipped": self.skipped,
        }


def name_in_memory(kind: str, source: Source) -> str:
    """What stands for the spec of a source that no text opens: its kind, number, shape and fingerprint."""
    return f"{kind}:{'x'.join(map(str, (len(source), *source.shape)))}#{source.fingerprint}"


def to_float(images: Tensor) -> Tensor:
    """uint8 images to the float32 in [0, 1] that every package exchanges."""
    return images.to(torch.float32).div_(255)
