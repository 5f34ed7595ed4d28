"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal) wait until the step at hand is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(SystemExit):
    """Training left early with a checkpoint to continue from; `code` is the exit code."""


@dataclass
class PendingSignal:
    """The signal that asked training to stop; 0 when none did."""

    signal: int = 0


@contextmanager
def deferred_interrupts() -> Iterator[PendingSignal]:
    """Note the first of them instead of acting on it; a second Ctrl-C is for those who cannot wait."""
    asked = PendingSignal()

    def note(number: int, frame: FrameType | None) -> None:
        if asked.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.signal = asked.signal or number

    if threading.current_thread() is not threading.main_thread():  # Python gives signals to the main thread alone
        yield asked
        return
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
