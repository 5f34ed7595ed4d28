"""TensorBoard, Weights & Biases and MLflow, on request: what metrics.jsonl gets, the speed, and pictures."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clustermim.distributed import rank
from clustermim.errors import MissingExtraError
from clustermim.files import write_atomic
from clustermim.runs import Run

Tracker = Literal["tensorboard", "wandb", "mlflow"]
LIBRARIES = {
    "tensorboard": ("torch.utils.tensorboard", "TensorBoard"),
    "wandb": ("wandb", "Weights & Biases"),
    "mlflow": ("mlflow", "MLflow"),
}


class Sink(NamedTuple):
    """Where one tracker takes values, and pictures from files."""

    log: Callable[[int, Mapping[str, float]], None]  # step and values
    log_picture: Callable[[int, Path], None]  # step and file


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Refuse those that are not installed, before a run is begun."""
    for name in trackers:
        _import(name)


@contextmanager
def open_sinks(trackers: Sequence[Tracker], run: Run, step: int) -> Iterator[list[Sink]]:
    """A sink for each tracker, on the first rank; `step` is where training starts, so that nothing appears twice."""
    with ExitStack() as stack:
        yield [_OPEN[name](run, step, stack) for name in trackers] if rank() == 0 else []


def track_picture(trackers: Sequence[Tracker], run: Run, step: int, path: Path) -> None:
    """Give a picture in the run folder to all trackers."""
    with open_sinks(trackers if path.exists() else (), run, step) as sinks:
        for sink in sinks:
            sink.log_picture(step, path)


def _tensorboard(run: Run, step: int, stack: ExitStack) -> Sink:
    module = _import("tensorboard")
    writer = module.SummaryWriter(str(run.folder / "tensorboard"), purge_step=step + 1)
    stack.callback(writer.close)

    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def draw(step: int, path: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as picture:
            writer.add_image(path.stem, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

    return Sink(write, draw)


def _wandb(run: Run, step: int, stack: ExitStack) -> Sink:
    module = _import("wandb")
    name = run.folder / "wandb.id"  # inside the folder: a resumed run continues its curve, a replaced one begins anew
    if not name.exists():
        write_atomic(name, secrets.token_hex(8).encode())
    place = {"id": name.read_text().strip(), "name": run.out.name, "dir": str(run.folder)}
    tracked = module.init(project="clustermim", resume="allow", config={"stage": run.stage, **run.config}, **place)
    stack.callback(tracked.finish)
    return Sink(
        lambda step, values: tracked.log(dict(values), step=step),
        lambda step, path: tracked.log({path.stem: module.Image(str(path))}, step=step),
    )


def _mlflow(run: Run, step: int, stack: ExitStack) -> Sink:
    module = _import("mlflow")
    name = run.folder / "mlflow.id"
    if name.exists():
        stack.enter_context(module.start_run(run_id=name.read_text().strip()))
    else:
        module.set_experiment("clustermim")
        begun = stack.enter_context(module.start_run(run_name=run.out.name))
        write_atomic(name, begun.info.run_id.encode())
        module.log_params({"stage": run.stage, **run.config})
    return Sink(
        lambda step, values: module.log_metrics(dict(values), step=step),
        lambda step, path: module.log_artifact(str(path)),
    )


def _import(name: str) -> Any:
    module, what = LIBRARIES[name]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(what, "tracking") from None


_OPEN: dict[Tracker, Callable[[Run, int, ExitStack], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
