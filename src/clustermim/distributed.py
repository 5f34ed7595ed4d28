"""One rank or many: sums and counts are reduced, rows never travel. Everything is a no-op on one rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

_by_itself = False  # whether this rank does what all of them do alike


def _together() -> bool:
    return dist.is_initialized() and not _by_itself


def rank() -> int:
    """This process's number among the ranks."""
    return dist.get_rank() if _together() else 0


def world_size() -> int:
    """How many ranks work together."""
    return dist.get_world_size() if _together() else 1


@contextmanager
def by_itself() -> Iterator[None]:
    """Each rank does alone what is inside, all of them the same, as if there were no others."""
    global _by_itself
    before, _by_itself = _by_itself, True
    try:
        yield
    finally:
        _by_itself = before


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over ranks, the same on every rank."""
    if _together():
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
    return tensor


def all_reduce_max(tensor: Tensor) -> Tensor:
    """The largest of all ranks, number by number, the same on every rank."""
    if _together():
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor


def gather_rows(rows: Tensor) -> Tensor:
    """The rows (n, d) of all ranks, one after the other, the same on every rank: for few, since all are everywhere."""
    counts = torch.zeros(world_size(), dtype=torch.long)
    counts[rank()] = len(rows)
    counts = all_reduce_sum(counts)
    start = int(counts[: rank()].sum())
    whole = rows.new_zeros(int(counts.sum()), *rows.shape[1:])
    whole[start : start + len(rows)] = rows
    return all_reduce_sum(whole)


def barrier() -> None:
    """Wait until every rank is here."""
    if _together():
        dist.barrier()


def broadcast(tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank."""
    if _together():
        tensor = tensor.contiguous()
        dist.broadcast(tensor, src=0)
    return tensor


@contextmanager
def process_group() -> Iterator[None]:
    """Join the other ranks when started by torchrun."""
    joins = "TORCHELASTIC_RUN_ID" in os.environ and not dist.is_initialized()
    if joins:
        # k-means and counts are summed on the CPU even where models train on GPUs: each device has its own way
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        if joins:
            dist.destroy_process_group()
