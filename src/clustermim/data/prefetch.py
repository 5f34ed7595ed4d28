"""Read ahead in a background thread, so that decoding and computing overlap."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
