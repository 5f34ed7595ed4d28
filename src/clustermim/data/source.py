"""The contract between stored images and everything that reads them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.errors import DataError

T = TypeVar("T")
Rows = Sequence[int] | NDArray[np.int64]  # positions in a source


class Batch(NamedTuple):
    """Some images of a source, in the order they were asked for (unreadable ones may be left out)."""

    images: Tensor  # (B, C, H, W) uint8
    labels: Tensor | None  # (B,) int64
    indices: Tensor  # (B,) int64, positions in the source

    def first(self, count: int) -> Batch:
        """The first so many of them."""
        return Batch(self.images[:count], None if self.labels is None else self.labels[:count], self.indices[:count])


class Source(ABC):
    """A map-style set of uint8 images of one shape, with optional labels."""

    spec: str  # the text that opens this source again
    shape: tuple[int, int, int]  # (C, H, W) of every image
    labels: NDArray[np.int64] | None  # one class id an image
    class_names: tuple[str, ...]  # by id; empty without labels
    fingerprint: str  # a short hash, the same for the same images, labels and options on any machine
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
        """All images once, or those that are true in `among` (n,), in order or shuffled by a seed, read ahead.

        Each rank gets every `world_size`-th image of the same order. The first `skip` batches are left out.
        """
        mine = islice(self.stream(seed, among), rank + world_size * skip * batch_size, None, world_size)
        chunks = iter(lambda: list(islice(mine, batch_size)), [])
        return (batch for batch in prefetch(map(self.load, chunks)) if len(batch.images))

    def stream(self, seed: int | None, among: NDArray[np.bool_] | None) -> Iterator[Any]:
        """What `load` makes batches of, in the order of `batches`: here the positions."""
        order = np.arange(len(self)) if seed is None else self.shuffle(seed)
        return iter((order if among is None else order[among[order]]).tolist())

    def load(self, chunk: list[Any]) -> Batch:
        """A batch of some items of `stream`."""
        return self.read(chunk)

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """All positions in the random order of a seed."""
        return np.random.default_rng(seed).permutation(len(self))

    def rows(self, indices: Rows) -> NDArray[np.int64]:
        """Positions as an array, −1 as the last; an IndexError for one that is not there."""
        rows = np.asarray(indices, dtype=np.int64)
        if ((rows < -len(self)) | (rows >= len(self))).any():
            raise IndexError(f"{self.spec} has {len(self)} images, asked for {rows.min()} to {rows.max()}")
        return rows % len(self)

    def batch(self, images: NDArray[np.uint8], rows: NDArray[np.int64]) -> Batch:
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
            "images": len(self),
            "shape": list(self.shape),
            "classes": len(self.class_names),
            "skipped": self.skipped,
        }


def prefetch(items: Iterator[T], depth: int = 2) -> Iterator[T]:
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
    """uint8 images to the float32 in [0, 1] that every package exchanges."""
    return images.to(torch.float32).div_(255)
