"""A training small enough to kill many times: every kind of randomness a real one has, on a linear model."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clustermim.data.randomness import ImageRandom
from clustermim.distributed import barrier, process_group, rank, world_size
from clustermim.runs import open_resumable_run
from clustermim.training import (
    Loop,
    Settings,
    Stopped,
    TrainResult,
    adamw,
    open_fabric,
    parameter_groups,
)

STEPS, BATCH, ACCUMULATE = 6, 4, 2
CONFIG = {"seed": 3, "epochs": 4}


def make_model() -> nn.Module:
    """Linear layers with dropout, which draws from the global generator, and a norm."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 1))


def batches(epoch: int, start: int) -> Iterator[Tensor]:
    """Shuffled rows with noise, (BATCH, 5) each."""
    rows = torch.linspace(-1, 1, STEPS * ACCUMULATE * BATCH * 5).view(-1, 5)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch)).view(-1, BATCH)
    order = order[rank() :: world_size()]
    for index in range(start, len(order)):
        noise = ImageRandom(3, epoch, order[index].numpy())(5).float() - 0.5
        yield rows[order[index]] + 0.1 * noise


def step(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    """Fit the sum of a row, with weights from numpy's global generator as a library might draw them."""
    weight = float(np.random.rand())  # noqa: NPY002
    error = (model(batch).squeeze(1) - batch.sum(dim=1)).square()
    return {"loss": error.mean() * (0.5 + weight), "worst": error.max()}


def settings(**changes: Any) -> Settings:
    """Four epochs of six steps, of three with two ranks."""
    steps, images = STEPS // world_size(), BATCH * ACCUMULATE * world_size()
    given = {"epochs": 4, "steps_per_epoch": steps, "images_per_step": images, "lr": 0.01, "warmup_steps": 3}
    return Settings(**{**given, "accumulate": ACCUMULATE, "clip": 1.0, "seed": 3, "log_every": 4, **changes})


def run_toy(out: Path, *, resume: bool = False, pause: float = 0.0, step: Any = step, **changes: Any) -> TrainResult:
    """Train the toy in a run folder; `pause` seconds a step, to be killed in."""

    def slow(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        time.sleep(pause)
        return step(model, batch)  # type: ignore[no-any-return]

    model = make_model()
    optimizer = adamw(parameter_groups(model), lr=0.01)
    with open_resumable_run(out, "toy", CONFIG, resume=resume) as run:
        trained = Loop(slow, batches, model, optimizer, settings(**changes), run, open_fabric("cpu")).train()
        run.summary = {"results": trained.final}
    return trained


def run_process(out: Path, resume: bool, pause: float, checkpoint_seconds: float) -> None:
    """What a child process does."""
    torch.set_num_threads(1)
    run_toy(out, resume=resume, pause=pause, checkpoint_seconds=checkpoint_seconds)


def tensors(path: Path) -> dict[str, bytes]:
    """The bytes of every tensor of a checkpoint."""
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def run_until_killed(out: Path) -> None:
    """Continue a run; in every attempt of torchrun one rank, drawn at random, is killed at a random moment."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    moments = random.Random(f"{out.name} {attempt}")
    victim, moment = moments.randrange(world_size()), moments.uniform(0.0, 2.0 * (attempt + 1))  # it arrives some time
    if rank() == victim and not (out / "summary.json").exists():
        threading.Timer(moment, kill, [out.with_name(f"{out.name}-kills")]).start()
    if not (out / "summary.json").exists():
        run_toy(out, resume=True, pause=0.05, checkpoint_seconds=0.01)
    barrier()
    os._exit(0)  # the timer may still wait


def kill(tally: Path) -> None:
    """Leave a mark and die at once."""
    with tally.open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


if (
    __name__ == "__main__"
):  # under torchrun: an unbroken run and one of two halves; or one that is killed again and again
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with process_group():
        if len(sys.argv) > 2:
            run_until_killed(folder / sys.argv[2])
        run_toy(folder / "whole")
        with suppress(Stopped):
            run_toy(folder / "halves", stop_after=2)
        run_toy(folder / "halves", resume=True)
