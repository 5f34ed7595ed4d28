"""One thread or all of them: pretraining steps of micro at several sizes, on a free machine and beside a busy process.

Workers are processes that take turns. `gflops` is an estimate: three passes of two operations a parameter and patch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.record import record
from benchmarks.turns import ratio, take_turns
from benchmarks.vit_speed import Case, make_model, ours

# side, patch and batch; digits are of 8 pixels
SIZES = [(8, 2, 4), (8, 2, 8), (8, 2, 16), (8, 2, 64), (8, 2, 256), (32, 4, 256)]


def steps(case: Case, threads: int) -> Callable[[], None]:
    """Steps with so many threads."""
    torch.set_num_threads(threads)
    return ours(case)


def spin() -> None:
    """Keep a core busy."""
    while True:
        sum(range(10**6))


def main() -> None:
    """Turns of both at every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    cores, results = len(os.sched_getaffinity(0)), []
    for busy in (False, True):
        other = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
        if busy:
            other.start()
        for side, patch, batch in SIZES:
            case = Case("micro", side, patch, batch, min(40, max(1, 16384 // (batch * (side // patch) ** 2))))
            seconds = take_turns({"one": partial(steps, case, 1), "all": partial(steps, case, cores)}, args.turns)
            parameters = sum(parameter.numel() for parameter in make_model(case).parameters())
            flops = 6 * parameters * case.patches * batch
            row = {"side": side, "patch_size": patch, "batch": batch, "gflops": round(flops / 1e9, 1), "busy": busy}
            results.append({**row, "one_times_faster": round(ratio(seconds["all"], seconds["one"]), 2)})
        if busy:
            other.terminate()
    record("threads", {**vars(args), "all": cores}, results)


if __name__ == "__main__":
    main()
