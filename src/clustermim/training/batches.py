"""Batches that depend on their place only, so that a resumed run sees again what it would have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
import torch

from clustermim.data import Batch, Source
from clustermim.data.prefetch import prefetch
from clustermim.distributed import rank, world_size
from clustermim.training.randomness import batch_generator

T = TypeVar("T")


class SeededBatches(Generic[T]):
    """`batches(epoch, start)` of a source, each made by `view(batch, generator)` in the background.

    What batch i of epoch e holds depends on seed, e and i (and the rank) only.
    """

    def __init__(self, source: Source, batch_size: int, seed: int, view: Callable[[Batch, torch.Generator], T]) -> None:
        self.source, self.batch_size, self.seed, self.view = source, batch_size, seed, view

    def __call__(self, epoch: int, start: int) -> Iterator[T]:
        """This rank's batches of an epoch, from number `start` on."""
        return prefetch(self.make(epoch, start))

    def make(self, epoch: int, start: int) -> Iterator[T]:
        order = int(np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0])  # the same on every rank
        batches = self.source.batches(self.batch_size, seed=order, rank=rank(), world_size=world_size(), skip=start)
        for index, batch in enumerate(batches, start):
            yield self.view(batch, batch_generator(self.seed, epoch, index))
