"""Read ahead in a background thread, so that decoding and computing overlap."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar, cast

T = TypeVar("T")

_END = object()


def prefetch(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same items, up to `depth` of them made in advance; an exception arrives in the reader's place."""
    ready: queue.Queue[object] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: object) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_END)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True, name="prefetch")
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield cast(T, item)
    finally:
        stopped.set()
        if thread is not threading.current_thread():  # the garbage collector may close us from any thread
            thread.join()
