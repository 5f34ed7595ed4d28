"""Long work shows itself: a live bar on a terminal, a plain line now and then in a log. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from clustermim.distributed import rank

T = TypeVar("T")

LINE_EVERY = 10.0  # seconds between lines in a log


def log_info(message: str) -> None:
    """One line for the person who waits, from the first rank; results go to stdout."""
    if rank() == 0:
        with suppress(OSError):  # a terminal that was closed
            print(message, file=sys.stderr, flush=True)


def warn_skipped(skipped: dict[str, str]) -> None:
    """Say how many images could not be read, and name the first of them."""
    if skipped:
        first = "; ".join(f"{name} ({reason})" for name, reason in list(skipped.items())[:3])
        log_info(f"warning: {len(skipped)} images could not be read and were skipped: {first}")


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """The same items, with the work done, its rate and the time left on display."""
    if sys.stderr.isatty() and rank() == 0:
        from rich import progress as rich  # slow to import, and of no use in a log
        from rich.console import Console

        yield from rich.track(items, description, total, console=Console(stderr=True), transient=True)
        return
    start = said = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said >= LINE_EVERY:
            said = now
            rate = done / (now - start)
            left = f", {(total - done) / rate:.0f} s left" if total else ""
            log_info(f"{description}: {done}{f'/{total}' if total else ''}, {rate:.1f}/s{left}")
