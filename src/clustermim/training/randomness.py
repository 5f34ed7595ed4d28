"""What a resumed run sees again: batches and random numbers by their place in the data, or from saved states."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from clustermim.data import Batch, Source
from clustermim.data.augment import Augment, read_augmented
from clustermim.data.randomness import ImageRandom
from clustermim.data.source import prefetch, split
from clustermim.distributed import all_reduce_sum, rank, world_size

T = TypeVar("T")


class SeededBatches(Generic[T]):
    """`batches(epoch, start)` of a source, each made by `view(batch, random)` in the background.

    What is done to an image in an epoch depends on seed, epoch and image only: not on its batch, nor on the number of
    workers, ranks or accumulated parts. `among` (n,) leaves images out. The images of a batch are dealt out to the
    ranks in groups of `group`; a batch of whole groups has the same groups on any number of ranks.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        seed: int,
        view: Callable[[Batch, ImageRandom], T],
        augment: Augment = "none",
        among: NDArray[np.bool_] | None = None,
        group: int = 1,
    ) -> None:
        self.source, self.batch_size, self.seed, self.view = source, batch_size, seed, view
        self.augment, self.among, self.group = augment, among, group

    def __call__(self, epoch: int, start: int) -> Iterator[T]:
        """This rank's batches of an epoch, from number `start` on."""
        return prefetch(self.make(epoch, start))

    def make(self, epoch: int, start: int) -> Iterator[T]:
        (order,) = np.random.SeedSequence((self.seed, epoch)).generate_state(1)  # the same on every rank
        rows = self.source.order(int(order), self.among)
        rows = rows[np.arange(len(rows)) // self.group % world_size() == rank()]
        for some in split(rows[start * self.batch_size :], self.batch_size):
            batch = read_augmented(self.source, some, self.augment, self.seed, epoch)
            made = self.view(batch, ImageRandom(self.seed, epoch, batch.indices.numpy(), stream=2))
            # pinned, so that copies to a GPU wait for nothing
            yield pin_memory(made) if torch.cuda.is_available() else made  # type: ignore[no-untyped-call]


def seed_generators(seed: int) -> None:
    """Start the global generators, which drop path and dropout use; every rank has streams of its own."""
    torch.manual_seed(_mixed(seed, rank()))
    np.random.seed(_mixed(seed, rank(), 1) % 2**32)  # noqa: NPY002 - what a library may draw from, not this package


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the global generators of all ranks, bytes of shape (ranks, length) each."""
    states = {"torch": torch.get_rng_state(), "numpy": _numpy_state()}
    if device.type != "cpu":
        states[device.type] = getattr(torch, device.type).get_rng_state()
    return {name: _gathered(state, device) for name, state in states.items()}


def restore_generators(states: dict[str, Tensor], device: torch.device, step: int = 0) -> None:
    """Put this rank's global generators into saved states (ranks, length).

    Those of a rank that was not there start anew, the same way whenever the training goes on from this step.
    """
    if rank() >= len(states["torch"]):
        seed_generators(step)
        return
    torch.set_rng_state(states["torch"][rank()].clone())
    _restore_numpy(states["numpy"][rank()])
    if device.type in states:
        getattr(torch, device.type).set_rng_state(states[device.type][rank()].clone())


def _mixed(*numbers: int) -> int:
    """One seed from several numbers; near numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _gathered(state: Tensor, device: torch.device) -> Tensor:
    """Every rank's bytes in a row each: a sum in which all other rows are zero."""
    rows = torch.zeros(world_size(), len(state), dtype=torch.uint8, device=device)
    rows[rank()] = state.to(device)
    return all_reduce_sum(rows).cpu()


def _numpy_state() -> Tensor:
    state: Any = np.random.get_state()  # noqa: NPY002
    _, keys, place, has_gauss, gauss = state
    content = keys.astype("<u4").tobytes() + struct.pack("<qqd", place, has_gauss, gauss)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _restore_numpy(state: Tensor) -> None:
    content = state.numpy().tobytes()
    tail = struct.calcsize("<qqd")
    keys = np.frombuffer(content[:-tail], dtype="<u4").astype(np.uint32)
    np.random.set_state(("MT19937", keys, *struct.unpack("<qqd", content[-tail:])))  # noqa: NPY002
