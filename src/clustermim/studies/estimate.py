"""What the cells of a study will cost: `clustermim study FILE --dry-run`.

Images are counted where they lie, and known of published sets; of teachers and tokenizers their names say enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from clustermim.data import open_source
from clustermim.data.spec import parse_spec
from clustermim.errors import DataError, UserError
from clustermim.files import user_path
from clustermim.models.vit import find_size
from clustermim.patches import DEFAULT_PATCH_SIZE
from clustermim.studies.cells import Cell, Reference
from clustermim.studies.costs import BACKWARD, Memory, Model, count, memory
from clustermim.teachers.handcrafted import hog_size
from clustermim.tokenizers.lloyd import MIN_REDUCED
from clustermim.tokenizers.space import FEWEST

# A good share of its peak, which needs images as fast. MAE's published runs, on V100s, reach a tenth of theirs.
GPU = "an A100 of 80 GB at 40 % of its 312 TFLOP/s"
GPU_SPEED, GPU_ROOM = 0.4 * 312e12, 72e9  # FLOP/s; bytes, some of the 80 GB left for the libraries
CORE_SPEED = 5e10  # FLOP/s of one CPU core, for what is computed without a GPU: k-means, its teachers, scores
# Lloyd's passes: (K + 120) · numbers of a vector, this many a second, on one core; seen for K = 50, 100 and 1000.
KMEANS_SPEED, KMEANS_EXTRA = 3e9, 120
# ImageNet-100 has the 100 classes that are usual since CMC.
PUBLISHED = {
    "cifar": {"train": 50_000, "test": 10_000},
    "imagenet100": {"train": 126_689, "val": 5_000},
    "imagenet1k": {"train": 1_281_167, "val": 50_000},
}
HUB = {"vits16|small-patch16": "small", "vitb16|base-patch16|vit-mae-base": "base"}  # teachers, at 224 pixels
# Published tokenizers: size of the codebook (of VQGANs the larger usual one), and operations for each id.
EXTERNAL = {"hf-flava": (8192, 2.66e8), "diffusers-vq": (16384, 5.35e8)}
ASSUMED_TOKENS = 512  # where the size of a codebook is not among the options

Options = dict[str, Any]


class TargetCost(NamedTuple):
    """How many numbers describe a patch, and what an image of them costs."""

    dim: int
    flops: float = 0.0
    note: str = ""


class Cost(NamedTuple):
    """What a cell costs."""

    text: str
    gpu_flops: float = 0.0
    core_seconds: float = 0.0
    known: bool = True


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


def total(cells: Sequence[Cell], to_do: Sequence[Cell]) -> str:
    """The cost of the cells that are not complete."""
    costs = [estimate(cell) for cell in to_do]
    flops, seconds = sum(cost.gpu_flops for cost in costs), sum(cost.core_seconds for cost in costs)
    unknown = sum(not cost.known for cost in costs)
    return (
        f"# estimates: GPU-hours are at best, on {GPU}; core-hours are of one CPU core;\n# decoding comes on top\n"
        f"# total: {len(cells)} cells, {len(cells) - len(to_do)} complete; {_hours(flops / GPU_SPEED)} GPU-hours, "
        f"{_hours(seconds)} core-hours{f', {unknown} not estimated' if unknown else ''}"
    )


def _pretrain(options: Options) -> Cost:
    model, target = masked_of(options)
    flops = _seen(options) * (BACKWARD * count(model).flops + target.flops)
    return _on_gpu(model, options, flops, target.note)


def _finetune(options: Options) -> Cost:
    model = _encoder(options, options["data"])
    tests = (options["epochs"] + 1) * images_of(options["test_data"])[0]
    return _on_gpu(model, options, (BACKWARD * _seen(options) + tests) * count(model).flops)


def _probe(options: Options) -> Cost:
    if options["protocol"] == "lbfgs":
        return _features(options)
    model = _encoder(options)
    images = _seen(options) + images_of(options["test_data"])[0]
    return _on_gpu(model, options, images * count(model).flops, trained=False)


def _features(options: Options) -> Cost:
    """Features of both sets, once; what is solved with them takes little beside."""
    images = images_of(options["data"])[0] + images_of(options["test_data"])[0]
    return _on_core(f"{_many(images)} images", images * count(_encoder(options)).flops / CORE_SPEED)


def _score(options: Options) -> Cost:
    (number, shape), tokenizer = images_of(options["data"]), options["tokenizer"]
    if not isinstance(tokenizer, Reference) or "patch_size" not in tokenizer.cell.options:
        return Cost("not estimated", known=False)
    target = tokens_of(tokenizer, Model("micro", shape, tokenizer.cell.options["patch_size"]))
    return _on_core(f"{_many(number)} images{target.note}", number * target.flops / CORE_SPEED)


def _kmeans(options: Options) -> Cost:
    """Iterations in memory, in few components, then passes over all patches."""
    number, shape = images_of(options["data"])
    model = Model("micro", shape, options["patch_size"])
    total = number * model.patches
    sample = min(total, options["max_patches"])
    teacher = teacher_of(options["teacher"]) if options["space"] == "features" else TargetCost(model.patch_dim)
    numbers = options["epochs"] * total * teacher.dim + options["iterations"] * sample * min(teacher.dim, MIN_REDUCED)
    described = options["epochs"] * number + min(number, sample // FEWEST)
    seconds = numbers * (options["k"] + KMEANS_EXTRA) / KMEANS_SPEED + described * teacher.flops / CORE_SPEED
    passes = f", {options['epochs']} passes over {_many(total)}" if options["epochs"] else ""
    return _on_core(f"{_many(sample)} patches in memory{passes}{teacher.note}", seconds)


ESTIMATES: dict[str, Callable[[Options], Cost]] = {
    "pretrain": _pretrain,
    "finetune": _finetune,
    "probe": _probe,
    "knn": _features,
    "score": _score,
    "fit kmeans": _kmeans,
}


@cache
def images_of(text: str) -> tuple[int, tuple[int, int, int]]:
    """Number and shape (C, H, W) of the images of a source: counted if they lie here, else as published."""
    spec = parse_spec(text)
    lies_here = spec.path and spec.scheme != "hf" and user_path(spec.path).exists()
    if lies_here or spec.scheme in ("textures", "digits"):
        source = open_source(text)
        return len(source), source.shape
    is_cifar = spec.scheme.startswith("cifar")
    *_, name, split = ("", "cifar", spec.split) if is_cifar else f"//{spec.path}".split("/")
    number, size = PUBLISHED.get(name, {}).get(split, 0), spec.size or ((32, 32) if is_cifar else None)
    if not number or size is None:
        raise DataError(f"number and size of the images of {text} are known when they are here")
    return min(number, spec.limit or number), (spec.channels or 3, *size)


def teacher_of(teacher: Any) -> TargetCost:
    """Width and operations of a teacher; for one that is not known, nothing."""
    size = next((size for names, size in HUB.items() if re.match(rf"hf:.*({names})", str(teacher))), None)
    if isinstance(teacher, Reference):
        model = _model(teacher.cell.options)
    elif str(teacher).startswith("hog"):
        return TargetCost(hog_size(16, 3)[1])
    elif size is None:
        return TargetCost(ASSUMED_TOKENS, note=", without its teacher")
    else:
        model = Model(size, (3, 224, 224), 16)
    return TargetCost(find_size(model.size).width, count(model).flops)


def tokens_of(tokenizer: Any, model: Model) -> TargetCost:
    """Size of the codebook of a tokenizer, and the operations of an image's ids."""
    if not isinstance(tokenizer, Reference):
        return TargetCost(ASSUMED_TOKENS, note=", without its tokenizer")
    stage, options = tokenizer.cell.stage, tokenizer.cell.options
    if stage == "fit external":
        tokens, each = EXTERNAL.get(options["source"].partition(":")[0], (ASSUMED_TOKENS, 0))
        return TargetCost(tokens, each * model.patches)
    tokens = options.get("k", ASSUMED_TOKENS)
    if stage != "fit kmeans":
        return TargetCost(tokens)  # small networks on the patch grid
    teacher = teacher_of(options["teacher"]) if options["space"] == "features" else TargetCost(model.patch_dim)
    return TargetCost(tokens, teacher.flops + 2 * model.patches * tokens * teacher.dim, teacher.note)


def masked_of(options: Options) -> tuple[Model, TargetCost]:
    """The model that such options pretrain, and its target."""
    model = _model(options)
    if options["target"] == "tokens":
        target = tokens_of(options["tokenizer"], model)
    elif options["target"] == "features":
        target = teacher_of(options["teacher"])
    else:
        pixels = options["target"] == "pixels"
        target = TargetCost(model.patch_dim if pixels else hog_size(model.patch_size, model.image[0])[1])
    mask = (options["layout"], options["mask_ratio"], target.dim)
    return Model(*model[:3], *mask, options["decoder_width"], options["decoder_depth"]), target


def _model(options: Options, data: str | None = None) -> Model:
    """The encoder that such options pretrain, on their data or on other."""
    if "model" not in options:
        raise DataError("the size of the encoder is known when it is there")
    patch_size, tokenizer = options["patch_size"], options.get("tokenizer")
    if patch_size is None and isinstance(tokenizer, Reference):
        patch_size = tokenizer.cell.options.get("patch_size")
    return Model(options["model"], images_of(data or options["data"])[1], patch_size or DEFAULT_PATCH_SIZE)


def _encoder(options: Options, data: str | None = None) -> Model:
    """The encoder that is evaluated."""
    run = options["run"]
    if not isinstance(run, Reference):
        raise DataError(f"the size of the encoder in {run} is read when it runs")
    return _model(run.cell.options, data)


def _seen(options: Options) -> int:
    """Images of all steps; an incomplete batch of an epoch is left out."""
    batch: int = options["batch_size"]
    return int(options["epochs"]) * (images_of(options["data"])[0] // batch) * batch


def _on_gpu(model: Model, options: Options, flops: float, note: str = "", trained: bool = True) -> Cost:
    millions = count(Model(*model[:3])).parameters / 1e6
    power = f"{flops:.1e}".replace("e+", "e")
    what = f"{millions:.1f} M parameters, {_many(_seen(options))} images, {power} FLOPs{note}"
    room = _room(memory(model, options["precision"], trained=trained), options)
    return Cost(f"{what}, {_hours(flops / GPU_SPEED)} GPU-hours; {room}", gpu_flops=flops)


def _on_core(what: str, seconds: float) -> Cost:
    return Cost(f"{what}, {_hours(seconds)} core-hours", core_seconds=seconds)


def _room(memory: Memory, options: Options) -> str:
    """The memory of a batch, and what to do where one GPU has less."""
    batch, parts = options["batch_size"], options.get("accumulate", 1)
    text = f"{memory.of(batch // parts) / 1e9:.1f} GB with batch {batch}{f' in {parts} parts' if parts > 1 else ''}"
    fitting = (n for n in range(parts, batch + 1) if batch % n == 0 and memory.of(batch // n) <= GPU_ROOM)
    enough = next(fitting, None)
    if enough is None:
        return f"{text}, too much for one GPU"
    if enough == parts:
        return text
    return f"{text}, use --accumulate {enough}" if "accumulate" in options else f"{text}, use {enough} GPUs"


def _many(number: int) -> str:
    return f"{number / 1e6:,.1f} M" if number >= 1e6 else f"{number:,}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    if hours < 0.05:
        return "under 0.1"
    return f"about {hours:.1f}" if hours < 10 else f"about {hours:,.0f}"
