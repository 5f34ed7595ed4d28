"""What the cells of a study will cost, printed beside their commands: `clustermim study FILE --dry-run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clustermim.errors import DataError, UserError
from clustermim.studies.cells import Cell, Reference
from clustermim.studies.flops import (
    BACKWARD,
    Memory,
    Shape,
    encoder_flops,
    encoder_memory,
    masked_flops,
    masked_memory,
    measure_speed,
    parameters,
)
from clustermim.studies.running import command
from clustermim.studies.static_info import TargetCost, images_of, masked_of, shape_of, teacher_of, tokens_of
from clustermim.tokenizers.lloyd import MIN_REDUCED
from clustermim.tokenizers.sample import FEWEST

# A good share of its peak, which needs images as fast. MAE's published runs, on V100s, reach a tenth of theirs.
GPU = "an A100 of 80 GB at 40 % of its 312 TFLOP/s"
GPU_SPEED, GPU_ROOM = 0.4 * 312e12, 72e9  # FLOP/s; bytes, some of the 80 GB left for the libraries
CORE_SPEED = 5e10  # FLOP/s of one CPU core, for what is computed without a GPU: k-means, its teachers, scores
# Lloyd's passes: (K + 120) · numbers of a vector, this many a second, on one core; seen for K = 50, 100 and 1000.
KMEANS_SPEED, KMEANS_EXTRA = 3e9, 120


class Cost(NamedTuple):
    """What a cell costs."""

    text: str
    gpu_flops: float = 0.0
    core_seconds: float = 0.0
    known: bool = True


def print_plan(cells: Sequence[Cell], out: Path, measure: bool = False) -> None:
    """The command of every cell with its cost, and the total of those that are not complete."""
    images_of.cache_clear()  # a folder may have changed since
    costs = []
    for cell in cells:
        done = cell.is_done(out)
        print(f"# {cell.title()}, {'complete' if done else 'to do'}\n{command(cell, out)}")
        if not done:
            costs.append(estimate(cell))
            print(f"#   {costs[-1].text}")
    flops, seconds = sum(cost.gpu_flops for cost in costs), sum(cost.core_seconds for cost in costs)
    unknown = sum(not cost.known for cost in costs)
    here = _here([cell for cell in cells if not cell.is_done(out)], flops, seconds) if measure else ""
    print(f"# estimates: GPU-hours are at best, on {GPU}; core-hours are of one CPU core;\n# decoding comes on top")
    print(
        f"# total: {len(cells)} cells, {len(cells) - len(costs)} complete; {_hours(flops / GPU_SPEED)} GPU-hours, "
        f"{_hours(seconds)} core-hours{f', {unknown} not estimated' if unknown else ''}{here}"
    )


def estimate(cell: Cell) -> Cost:
    """What a cell costs, as far as it can be said."""
    if cell.stage not in ESTIMATES:
        return Cost("not estimated", known=False)
    if min(cell.options.get(name, 1) for name in ("batch_size", "accumulate")) < 1:
        return Cost("not estimated: --batch-size and --accumulate are 1 at least", known=False)
    try:
        return ESTIMATES[cell.stage](cell.options)
    except UserError as error:
        return Cost(f"not estimated: {error}", known=False)


def _pretrain(options: dict[str, Any]) -> Cost:
    model, target = masked_of(options)
    images = _seen(options)
    flops = images * (BACKWARD * masked_flops(model) + target.flops)
    memory = _room(masked_memory(model, options["precision"]), options)
    return _on_gpu(model.shape, images, flops, target.note, memory)


def _finetune(options: dict[str, Any]) -> Cost:
    shape = shape_of(_pretrained(options), options["data"])
    images, tests = _seen(options), (options["epochs"] + 1) * images_of(options["test_data"]).number
    flops = (BACKWARD * images + tests) * encoder_flops(shape)
    memory = encoder_memory(shape, options["precision"], trained=True)
    return _on_gpu(shape, images, flops, "", _room(memory, options))


def _probe(options: dict[str, Any]) -> Cost:
    if options["protocol"] == "lbfgs":
        return _features(options)
    shape, images = shape_of(_pretrained(options)), _seen(options)
    flops = (images + images_of(options["test_data"]).number) * encoder_flops(shape)
    memory = encoder_memory(shape, options["precision"], trained=False)
    return _on_gpu(shape, images, flops, "", _room(memory, options))


def _features(options: dict[str, Any]) -> Cost:
    """Features of both sets, once; what is solved with them takes little beside."""
    shape = shape_of(_pretrained(options))
    images = images_of(options["data"]).number + images_of(options["test_data"]).number
    return _on_core(f"{_many(images)} images", images * encoder_flops(shape) / CORE_SPEED)


def _tcas(options: dict[str, Any]) -> Cost:
    images, tokenizer = images_of(options["data"]), options["tokenizer"]
    if not isinstance(tokenizer, Reference) or "patch_size" not in tokenizer.cell.options:
        return Cost("not estimated", known=False)
    target = tokens_of(tokenizer, Shape("micro", images.shape, tokenizer.cell.options["patch_size"]))
    return _on_core(f"{_many(images.number)} images{target.note}", images.number * target.flops / CORE_SPEED)


def _kmeans(options: dict[str, Any]) -> Cost:
    """Iterations in memory, in few components, then passes over all patches."""
    images = images_of(options["data"])
    shape = Shape("micro", images.shape, options["patch_size"])
    total = images.number * shape.patches
    sample = min(total, options["max_patches"])
    teacher = teacher_of(options["teacher"]) if options["space"] == "features" else TargetCost(shape.patch_dim)
    numbers = options["epochs"] * total * teacher.dim + options["iterations"] * sample * min(teacher.dim, MIN_REDUCED)
    described = options["epochs"] * images.number + min(images.number, sample // FEWEST)
    seconds = numbers * (options["k"] + KMEANS_EXTRA) / KMEANS_SPEED + described * teacher.flops / CORE_SPEED
    passes = f", {options['epochs']} passes over {_many(total)}" if options["epochs"] else ""
    return _on_core(f"{_many(sample)} patches in memory{passes}{teacher.note}", seconds)


ESTIMATES: dict[str, Callable[[dict[str, Any]], Cost]] = {
    "pretrain": _pretrain,
    "finetune": _finetune,
    "probe": _probe,
    "knn": _features,
    "score": _tcas,
    "fit kmeans": _kmeans,
}


def _pretrained(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the pretraining whose encoder is used."""
    run = options["run"]
    if not isinstance(run, Reference):
        raise DataError(f"the size of the encoder in {run} is read when it runs")
    return run.cell.options


def _seen(options: dict[str, Any]) -> int:
    """Images of all steps; an incomplete batch of an epoch is left out."""
    batch: int = options["batch_size"]
    steps: int = options["epochs"] * (images_of(options["data"]).number // batch)
    return steps * batch


def _on_gpu(shape: Shape, images: int, flops: float, note: str, memory: str) -> Cost:
    what = f"{parameters(shape)[0] / 1e6:.1f} M parameters, {_many(images)} images, {_power(flops)} FLOPs{note}"
    return Cost(f"{what}, {_hours(flops / GPU_SPEED)} GPU-hours; {memory}", gpu_flops=flops)


def _on_core(what: str, seconds: float) -> Cost:
    return Cost(f"{what}, {_hours(seconds)} core-hours", core_seconds=seconds)


def _room(memory: Memory, options: dict[str, Any]) -> str:
    """The memory of a batch, and what to do where one GPU has less."""
    batch, parts = options["batch_size"], options.get("accumulate", 1)
    text = f"{memory.of(batch // parts) / 1e9:.1f} GB with batch {batch}"
    if parts > 1:
        text += f" in {parts} parts"
    fitting = (n for n in range(parts, batch + 1) if batch % n == 0 and memory.of(batch // n) <= GPU_ROOM)
    enough = next(fitting, None)
    if enough is None:
        return f"{text}, too much for one GPU"
    if enough == parts:
        return text
    return f"{text}, use --accumulate {enough}" if "accumulate" in options else f"{text}, use {enough} GPUs"


def _here(cells: Sequence[Cell], flops: float, seconds: float) -> str:
    """The time of all of it on this machine, from some steps of the smallest pretraining, the quickest to try."""
    found = [
        (cell.options, masked_of(cell.options)[0])
        for cell in cells
        if cell.stage == "pretrain" and estimate(cell).known
    ]
    if not found:
        return "; no pretraining to measure"
    options, model = min(found, key=lambda pair: masked_flops(pair[1]))
    speed = measure_speed(model, options["batch_size"], options["device"], options["precision"])
    measured = f"{speed / 1e9:.1f} GFLOP/s in measured steps ({model.shape.model})"
    return f"; {_hours(flops / speed + seconds)} hours here, at {measured}"


def _many(number: int) -> str:
    return f"{number / 1e6:,.1f} M" if number >= 1e6 else f"{number:,}"


def _power(number: float) -> str:
    return f"{number:.1e}".replace("e+", "e")


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    if hours < 0.05:
        return "under 0.1"
    return f"about {hours:.1f}" if hours < 10 else f"about {hours:,.0f}"
