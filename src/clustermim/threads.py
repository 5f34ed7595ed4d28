"""Work shared out among threads in large pieces: torch shares out every operation, and its threads wait after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

P, T = TypeVar("P"), TypeVar("T")
_threads: ContextVar[int] = ContextVar("threads", default=0)  # that torch had before `undivided`


@contextmanager
def undivided() -> Iterator[None]:
    """Here torch computes each operation in one thread; `in_threads` still has as many as torch had.

    Threads that share an operation wait for each other at its end: for milliseconds when another process is busy.
    """
    threads = torch.get_num_threads()
    before = _threads.set(_threads.get() or threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _threads.reset(before)


def in_threads(work: Callable[[P], T], parts: Sequence[P]) -> list[T]:
    """work(part) of every part, in as many threads as torch has, each of which computes alone."""
    own = torch.get_num_threads()
    threads = min(_threads.get() or own, len(parts))
    if threads <= 1:
        return [work(part) for part in parts]
    try:
        with ThreadPoolExecutor(threads, initializer=_compute_alone) as pool:
            return list(pool.map(work, parts))
    finally:
        torch.set_num_threads(own)  # it is also that of threads to come


def _compute_alone() -> None:
    torch.get_num_threads()  # a new thread first takes over the number of all
    torch.set_num_threads(1)
