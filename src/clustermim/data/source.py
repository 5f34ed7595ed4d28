"""The contract between stored images and everything that reads them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data.transforms import TRIES, flip, random_boxes, resize_boxes
from clustermim.errors import DataError

T = TypeVar("T")
Rows = Sequence[int] | NDArray[np.int64]  # positions in a source


class Batch(NamedTuple):
    """Some images of a source, in the order they were asked for (unreadable ones may be left out)."""

    images: Tensor  # (B, C, H, W) uint8, or uint16 where the source has that
    labels: Tensor | None  # (B,) int64
    indices: Tensor  # (B,) int64, positions in the source

    def first(self, count: int) -> Batch:
        """The first so many of them."""
        return Batch(self.images[:count], None if self.labels is None else self.labels[:count], self.indices[:count])


IGNORED = -1  # in a mask: a pixel without a class


class Masks(NamedTuple):
    """The class of every pixel."""

    read: Callable[[Rows], Tensor]  # positions to (B, H, W) int16, of the size of the images; or `IGNORED`
    class_names: tuple[str, ...] = ()  # by number; empty where classes have no names


class Source(ABC):
    """A map-style set of images of one shape and type, with optional labels and masks."""

    spec: str  # the text that opens this source again
    shape: tuple[int, int, int]  # (C, H, W) of every image
    labels: NDArray[np.int64] | None  # one class id an image
    class_names: tuple[str, ...]  # by id; empty without labels
    fingerprint: str  # a short hash, the same for the same images, labels and options on any machine
    dates: str = ""  # a hash of when the files were written, on this machine: names what is kept of them in the cache
    dtype: type[np.uint8] | type[np.uint16] = np.uint8  # of a pixel; its largest value is white
    masks: Masks | None = None  # the class of every pixel, where that is known
    skipped: dict[str, str]  # what could not be read and why, by file name (filled while reading, `on_bad_image=skip`)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Rows) -> Batch:
        """The images at these positions."""

    def __getitem__(self, index: int) -> tuple[Tensor, int | None]:
        """One image (C, H, W) uint8 and its label."""
        batch = self.read([index])
        if not len(batch.images):
            raise DataError(f"{self.spec}: image {index} cannot be read ({'; '.join(self.skipped.values())})")
        return batch.images[0], None if batch.labels is None else int(batch.labels[0])

    def read_crops(self, indices: Rows, draws: Callable[[int], Tensor], size: tuple[int, int] | None = None) -> Batch:
        """A random box of each image as it is stored, resized to `size` or this source's, half of them mirrored.

        `draws(count)` gives `count` uniform numbers of each image, (B, count).
        """
        batch = self.read(indices)
        mirrored, numbers = draws(1)[:, 0] < 0.5, draws(4 * TRIES).view(-1, 4, TRIES).movedim(1, 0)  # (4, B, TRIES)
        boxes = random_boxes(numbers, *self.shape[1:])
        return batch._replace(images=flip(resize_boxes(batch.images, boxes, size or self.shape[1:]), mirrored))

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        among: NDArray[np.bool_] | None = None,
    ) -> Iterator[Batch]:
        """All images once, or those that are true in `among` (n,), in order or shuffled by a seed, read ahead.

        Each rank gets every `world_size`-th image of the same order.
        """
        chunks = split(self.order(seed, among)[rank::world_size], batch_size)
        return (batch for batch in prefetch(map(self.read, chunks)) if len(batch.images))

    def order(self, seed: int | None, among: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """All positions, or those that are true in `among` (n,), in order or shuffled by a seed."""
        order = np.arange(len(self)) if seed is None else self.shuffle(seed)
        return order if among is None else order[among[order]]

    def readable(self, indices: Rows) -> NDArray[np.bool_]:
        """Which of these images can be read; a DataError that names all others, unless these are to be skipped."""
        return np.ones(len(indices), dtype=np.bool_)

    def contents(self) -> str:
        """A hash of all files, the same on any machine, once `readable` has read them; empty where there are none."""
        return ""

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """All positions in the random order of a seed."""
        return np.random.default_rng(seed).permutation(len(self))

    def rows(self, indices: Rows) -> NDArray[np.int64]:
        """Positions as an array, −1 as the last; an IndexError for one that is not there."""
        rows = np.asarray(indices, dtype=np.int64)
        if ((rows < -len(self)) | (rows >= len(self))).any():
            raise IndexError(f"{self.spec} has {len(self)} images, asked for {rows.min()} to {rows.max()}")
        return rows % len(self)

    def batch(self, images: NDArray[Any], rows: NDArray[np.int64]) -> Batch:
        """Images (B, C, H, W) with the labels at their positions."""
        labels = None if self.labels is None else torch.from_numpy(self.labels[rows])
        return Batch(torch.from_numpy(np.ascontiguousarray(images)), labels, torch.from_numpy(rows))

    def __repr__(self) -> str:
        shape, classes = "×".join(map(str, self.shape)), len(self.class_names)
        labels = "no labels" if self.labels is None else f"{classes} class{'es' * (classes != 1)}"
        return f"<{type(self).__name__} {self.spec}: {len(self):,} images of {shape}, {labels}>"

    def describe(self) -> dict[str, Any]:
        """What a summary says of its data."""
        return {
            "spec": self.spec,
            "fingerprint": self.fingerprint,
            **({"contents": self.contents()} if self.contents() else {}),
            "images": len(self),
            "shape": list(self.shape),
            "classes": len(self.class_names),
            "skipped": self.skipped,
        }


def split(rows: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Rows in pieces of a size, the last one perhaps smaller."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


def prefetch(items: Iterator[T], depth: int = 2) -> Generator[T]:
    """The same items, up to `depth` of them made in advance; an exception arrives in the reader's place."""
    end, worker = object(), list[int]()
    pool = ThreadPoolExecutor(1, "prefetch", lambda: worker.append(threading.get_ident()))
    try:
        waiting = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        # the garbage collector may close us from any thread, and a thread cannot wait for itself
        pool.shutdown(wait=threading.get_ident() not in worker, cancel_futures=True)


def name_in_memory(kind: str, source: Source) -> str:
    """What stands for the spec of a source that no text opens: its kind, number, shape and fingerprint."""
    return f"{kind}:{'x'.join(map(str, (len(source), *source.shape)))}#{source.fingerprint}"


def to_float(images: Tensor) -> Tensor:
    """Images of whole numbers to the float32 in [0, 1] that every room exchanges; others are as they were."""
    if images.is_floating_point():
        return images
    return images.to(torch.float32).div_(torch.iinfo(images.dtype).max)
