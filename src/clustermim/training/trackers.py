"""TensorBoard and Weights & Biases, on request: they get what metrics.jsonl gets, and the speed."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from clustermim.distributed import rank
from clustermim.errors import MissingExtraError
from clustermim.files import write_atomic
from clustermim.runs import Run

Tracker = Literal["tensorboard", "wandb"]
LIBRARIES = {"tensorboard": ("torch.utils.tensorboard", "TensorBoard"), "wandb": ("wandb", "Weights & Biases")}
Sink = Callable[[int, Mapping[str, float]], None]  # step and values


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Refuse those that are not installed, before a run is begun."""
    for name in trackers:
        _import(name)


@contextmanager
def open_sinks(trackers: Sequence[Tracker], run: Run, step: int) -> Iterator[list[Sink]]:
    """A sink for each tracker, on the first rank; `step` is where training starts, so that nothing appears twice."""
    with ExitStack() as stack:
        yield [_OPEN[name](run, step, stack) for name in trackers] if rank() == 0 else []


def _tensorboard(run: Run, step: int, stack: ExitStack) -> Sink:
    module = _import("tensorboard")
    writer = module.SummaryWriter(str(run.folder / "tensorboard"), purge_step=step + 1)
    stack.callback(writer.close)

    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return write


def _wandb(run: Run, step: int, stack: ExitStack) -> Sink:
    module = _import("wandb")
    name = run.folder / "wandb.id"  # inside the folder: a resumed run continues its curve, a replaced one begins anew
    if not name.exists():
        write_atomic(name, secrets.token_hex(8).encode())
    place = {"id": name.read_text().strip(), "name": run.out.name, "dir": str(run.folder)}
    tracked = module.init(project="clustermim", resume="allow", config={"stage": run.stage, **run.config}, **place)
    stack.callback(tracked.finish)
    return lambda step, values: tracked.log(dict(values), step=step)


def _import(name: str) -> Any:
    module, what = LIBRARIES[name]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(what, "tracking") from None


_OPEN: dict[Tracker, Callable[[Run, int, ExitStack], Sink]] = {"tensorboard": _tensorboard, "wandb": _wandb}
