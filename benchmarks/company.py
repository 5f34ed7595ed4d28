"""A busy machine: processes that load every core while something is measured."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def burn() -> None:
    """Other work, for ever."""
    numbers = np.random.default_rng(0).random((300, 300))
    while True:
        numbers = np.tanh(numbers @ numbers / 300)


@contextmanager
def company(busy: bool) -> Iterator[None]:
    """Beside as many busy processes as there are cores, or alone."""
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=burn, daemon=True) for _ in range((os.cpu_count() or 1) * busy)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
