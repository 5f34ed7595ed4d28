"""Several ways of doing one thing, each in a process of its own, taking turns: what disturbs one disturbs all.

A worker is a function that prepares and returns the work of one turn; while one works, the others wait.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

Prepare = Callable[[], Callable[[], None]]


def take_turns(workers: Mapping[str, Prepare], turns: int) -> dict[str, list[float]]:
    """Seconds of every turn of every worker; a first turn of each is not counted."""
    spawn = multiprocessing.get_context("spawn")  # nothing of one reaches the other
    pipes, processes = {}, []
    for name, prepare in workers.items():
        pipes[name], there = spawn.Pipe()
        processes.append(spawn.Process(target=_serve, args=(prepare, there)))  # which may start others
        processes[-1].start()
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns + 1):
        for name, pipe in pipes.items():
            pipe.send(True)
            took = pipe.recv()
            if turn:
                seconds[name].append(took)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    return seconds


def ratio(slow: list[float], fast: list[float]) -> float:
    """How many times faster, by the median of neighbouring turns."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def _serve(prepare: Prepare, pipe: Connection) -> None:
    work = prepare()
    while pipe.recv():
        start = time.perf_counter()
        work()
        pipe.send(time.perf_counter() - start)
