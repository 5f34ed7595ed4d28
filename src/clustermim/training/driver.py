"""The one driver of all training: a task and a schedule in, a trained model out, with or without a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clustermim.cost import measure_cost
from clustermim.data.encoded import set_workers
from clustermim.distributed import all_reduce_sum, barrier, rank
from clustermim.errors import ConfigError
from clustermim.runs import Run, pending_run
from clustermim.training.devices import open_fabric
from clustermim.training.loop import Loop, TrainResult
from clustermim.training.randomness import SeededBatches
from clustermim.training.schedule import RunOptions, Schedule, make_settings
from clustermim.training.sharding import shared_out
from clustermim.training.state import Settings
from clustermim.training.task import Task
from clustermim.training.trackers import check_trackers

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Out = str | Path | Callable[[], Run] | None


@contextmanager
def run_opener(out: Out, stage: str, config: dict[str, Any], options: RunOptions) -> Iterator[Callable[[], Run] | None]:
    """What opens a run when `fit` calls it: one at a path, complete when the block ends well; or what was given."""
    if isinstance(out, str | Path):
        with pending_run(out, stage, config, resume=options.resume, overwrite=options.overwrite) as opener:
            yield opener
    else:
        yield out


def fit(task: Task, schedule: Schedule, out: Out = None, *, options: RunOptions = RunOptions()) -> TrainResult:
    """Train a task's model to the end of a schedule.

    Args:
        task: what is trained.
        schedule: how long and how fast.
        out: without it nothing is written. A folder: a resumable run, complete when the training is. A function that
            opens a run (`runs.pending_run`): the caller completes it. Either is opened only when everything the user
            chose is known to be right.
        options: of a run folder: trackers, an early stop, and what to do with a folder that is there.
    """
    if isinstance(out, str | Path):
        with run_opener(out, task.name, asdict(schedule), options) as opener:
            assert opener is not None
            result = fit(task, schedule, opener, options=options)
            opener().summary = {"results": result.summary(), "data": task.source.describe()}
        return result
    if out is None and replace(options, workers=0, strategy="ddp") != RunOptions():
        raise ConfigError("track, stop_after, keep, resume and overwrite are of a run folder: name one with out")
    set_workers(options.workers)
    if rank() == 0:
        task.source.readable(range(len(task.source)))
    barrier()  # the others read what the first rank found
    among = task.source.readable(range(len(task.source)))
    settings = make_settings(schedule, task.source.spec, int(among.sum()), task.base_lr, options)
    fabric = open_fabric(schedule.device, schedule.precision, options.strategy)
    task.setup(settings, fabric)
    if options.strategy == "fsdp" and (task.blocks is None or schedule.compile or options.save_every):
        raise ConfigError(
            "--strategy fsdp is for pretrain, without --target online, --watch, --save-every and --compile"
        )
    if options.save_every and type(task).save_epoch is Task.save_epoch:
        raise ConfigError(f"--save-every is for pretrain, not for {task.name}")
    with shared_out(task, fabric):
        return _train(task, schedule, settings, fabric, among, out, options)


def _train(
    task: Task,
    schedule: Schedule,
    settings: Settings,
    fabric: Fabric,
    among: NDArray[np.bool_],
    out: Callable[[], Run] | None,
    options: RunOptions,
) -> TrainResult:
    """Train a task that is set up; `among` (n,) has the images that can be read."""
    optimizer = task.optimizer(settings.lr, schedule.weight_decay)
    check_trackers(options.track or ())
    drawn = settings.images_per_batch, settings.seed, task.view, task.augment, among, task.group
    batches = SeededBatches(task.source, *drawn)
    model = torch.compile(task.model, fullgraph=True) if schedule.compile else task.model
    inputs, tracked = task.inputs, options.track or ()
    run = None if out is None else out()  # only now, when nothing the user chose can be wrong any more
    with measure_cost() as cost:
        task.start()
    before = all_reduce_sum(torch.tensor([cost["flops"], cost["cpu_seconds"]], dtype=torch.float64)).tolist()
    steps = task.step, batches.make, cast(nn.Module, model), optimizer
    hooks = task.after_epoch, inputs, task.split, task.save_epoch
    loop = Loop(*steps, settings, run, fabric, tracked, *hooks, after_step=task.after_step)
    result = loop.train()
    return result._replace(flops=result.flops + before[0], cpu_seconds=result.cpu_seconds + before[1])
