"""Kill a pretraining at random moments until enough kills have hit it; a process that forks and computes nothing.

    python killing.py FOLDER KILLS

FOLDER/whole is an unbroken run, FOLDER/broken0, … are the others. Prints one JSON object: how many
there were, how many kills hit a live process, and how many of these hit it in the middle of training.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import lightning_fabric  # noqa: F401 - what children would import one by one
import torch

from clustermim.cli import main
from clustermim.drawing import reconstructions  # noqa: F401 - likewise
from clustermim.training import CHECKPOINT, Settings, schedule

WORDS = ("pretrain", "--data", "textures:?images=64&grid=4&patch=4", "--target", "pixels", "--batch-size", "8")
OPTIONS = ("--epochs", "5", "--drop-path", "0.2", "--device", "cpu")


def start(out: Path, checkpoint_seconds: float) -> int:
    """A child that runs the command line, with checkpoints as often as asked."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        # the one place where stages make settings
        schedule.Settings = partial(Settings, checkpoint_seconds=checkpoint_seconds, log_every=3)  # type: ignore[attr-defined]
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        code = main([*WORDS, *OPTIONS, "--out", str(out), "--resume"])
    finally:
        os._exit(code)


def version(path: Path) -> int:
    """What changes with every new checkpoint."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def wait_for(child: int, path: Path, checkpoints: int, moment: float) -> int | None:
    """Until the child has saved so many checkpoints and a moment more; its status if it ended by itself."""
    last = version(path)
    while checkpoints:
        time.sleep(0.001)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        now = version(path)
        checkpoints, last = checkpoints - (now != last), now
    time.sleep(moment)
    return None


def broken(out: Path, moments: random.Random, wanted: int) -> list[bool]:
    """A run that is killed and resumed until it is complete; of each kill, whether it hit the middle of training.

    That is a process which had saved a checkpoint of its own and had not finished. After as many as wanted, it is left
    in peace.
    """
    hits: list[bool] = []
    while not (out / "summary.json").exists():
        child = start(out, checkpoint_seconds=0.05)
        # few checkpoints, so that one run takes many kills; none now and then: a kill at the start
        checkpoints = moments.choice((0, 1, 1, 1, 2)) if sum(hits) < wanted else sys.maxsize
        status = wait_for(child, out / CHECKPOINT, checkpoints, moments.uniform(0.0, 0.08))
        if status is None:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):  # it was alive
            assert os.WTERMSIG(status) == signal.SIGKILL
            hits.append(checkpoints > 0 and not (out / "summary.json").exists())
        else:
            assert os.WEXITSTATUS(status) == 0, f"a child ended with {os.WEXITSTATUS(status)}"
    return hits


if __name__ == "__main__":
    folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
    moments = random.Random(0)
    hits: list[bool] = []
    _, status = os.waitpid(start(folder / "whole", checkpoint_seconds=300.0), 0)
    assert status == 0
    runs = 0
    while sum(hits) < wanted:
        hits += broken(folder / f"broken{runs}", moments, wanted - sum(hits))
        runs += 1
    print(json.dumps({"runs": runs, "kills": len(hits), "in_training": sum(hits)}))
