"""Work shared out among threads in large pieces: torch shares out every operation, and its threads wait after each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import torch

P = TypeVar("P")
T = TypeVar("T")
_threads: ContextVar[int] = ContextVar("threads", default=0)  # that torch had before `undivided`
# What each part of work in another thread is done within: torch's modes, such as counters, are those of one thread.
within: ContextVar[Callable[[], AbstractContextManager[Any]]] = ContextVar("within", default=nullcontext)


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
    own, mode = torch.get_num_threads(), within.get()
    threads = min(_threads.get() or own, len(parts))
    if threads <= 1:
        return [work(part) for part in parts]

    def work_within(part: P) -> T:
        with mode():
            return work(part)

    try:
        running = [_pool(threads).submit(work_within, part) for part in parts]
        wait(running)  # also for those after one that fails: what they write to may be used again
        return [part.result() for part in running]
    finally:
        torch.set_num_threads(own)  # it is also that of threads to come


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: new ones in every step give its memory back, and the next fetches it page by page."""
    return ThreadPoolExecutor(threads, "parts", initializer=_compute_alone)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has none of its parent's threads


def _compute_alone() -> None:
    torch.get_num_threads()  # a new thread first takes over the number of all
    torch.set_num_threads(1)
