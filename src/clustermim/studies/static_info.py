"""What can be known of a cell's images, teacher and tokenizer before any of them is there.

Images are counted where they lie, and known of published sets; of teachers and tokenizers their names say enough.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from clustermim.data import open_source
from clustermim.data.spec import parse_spec
from clustermim.errors import DataError
from clustermim.files import user_path
from clustermim.patches import DEFAULT_PATCH_SIZE
from clustermim.studies.cells import Reference
from clustermim.studies.flops import Masked, Shape, encoder_flops
from clustermim.teachers.hog import hog_size

# Images of folders that end so; ImageNet-100 has the 100 classes that are usual since CMC.
PUBLISHED = {
    "imagenet100/train": 126_689,
    "imagenet100/val": 5_000,
    "imagenet1k/train": 1_281_167,
    "imagenet1k/val": 50_000,
}
CIFAR = {"train": 50_000, "test": 10_000}
# Teachers of the hub, all with patches of 16 at 224 pixels.
HUB = {
    "facebook/dino-vits16": "small",
    "facebook/dino-vitb16": "base",
    "facebook/deit-small-patch16-224": "small",
    "facebook/deit-base-patch16-224": "base",
    "facebook/vit-mae-base": "base",
}
# Published tokenizers: size of the codebook (of VQGANs the larger usual one), and operations for each id, counted once
# in the networks of the libraries.
EXTERNAL = {"hf-flava": (8192, 2.66e8), "diffusers-vq": (16384, 5.35e8)}
ASSUMED_TOKENS = 512  # where the size of a codebook is not among the options


class Images(NamedTuple):
    """What is known of a source without reading it."""

    number: int
    shape: tuple[int, int, int]  # (C, H, W)


class TargetCost(NamedTuple):
    """What a model predicts of a patch, and what it costs to know it."""

    dim: int
    flops: float = 0.0  # of an image
    note: str = ""


@lru_cache
def images_of(text: str) -> Images:
    """Number and shape of the images of a source: counted if they lie here, else as published."""
    spec = parse_spec(text)
    lies_here = spec.path and spec.scheme != "hf" and user_path(spec.path).exists()
    if lies_here or spec.scheme in ("textures", "digits"):
        source = open_source(text)
        return Images(len(source), source.shape)
    size = spec.size
    if spec.scheme.startswith("cifar"):
        count, size = CIFAR[spec.split], size or (32, 32)
    else:
        count = next((PUBLISHED[name] for name in PUBLISHED if f"/{spec.path}".endswith(f"/{name}")), 0)
    if not count or size is None:
        raise DataError(f"number and size of the images of {text} are known when they are here")
    return Images(min(count, spec.limit or count), (spec.channels or 3, *size))


def teacher_of(teacher: Any) -> TargetCost:
    """Width and operations of a teacher; for one that is not known, nothing."""
    if isinstance(teacher, Reference):
        shape = shape_of(teacher.cell.options)
    else:
        scheme, _, rest = str(teacher).partition(":")
        name = rest.partition("?")[0]
        if scheme == "hog":
            return TargetCost(hog_size(16, 3)[1])
        if scheme != "hf" or name not in HUB:
            return TargetCost(ASSUMED_TOKENS, note=", without its teacher")
        shape = Shape(HUB[name], (3, 224, 224), 16)
    return TargetCost(shape.size.width, encoder_flops(shape))


def tokens_of(tokenizer: Any, shape: Shape) -> TargetCost:
    """Size of the codebook of a tokenizer, and the operations of an image's ids."""
    if not isinstance(tokenizer, Reference):
        return TargetCost(ASSUMED_TOKENS, note=", without its tokenizer")
    stage, options = tokenizer.cell.stage, tokenizer.cell.options
    if stage == "fit external":
        tokens, each = EXTERNAL.get(options["source"].partition(":")[0], (ASSUMED_TOKENS, 0))
        return TargetCost(tokens, each * shape.patches)
    tokens = options.get("k", ASSUMED_TOKENS)
    if stage != "fit kmeans":
        return TargetCost(tokens)  # small networks on the patch grid
    teacher = teacher_of(options["teacher"]) if options["space"] == "features" else TargetCost(shape.patch_dim)
    return TargetCost(tokens, teacher.flops + 2 * shape.patches * tokens * teacher.dim, teacher.note)


def shape_of(options: dict[str, Any], data: str | None = None) -> Shape:
    """The encoder that such options pretrain, on their data or on other."""
    if "model" not in options:
        raise DataError("the size of the encoder is known when it is there")
    patch_size, tokenizer = options["patch_size"], options.get("tokenizer")
    if patch_size is None and isinstance(tokenizer, Reference):
        patch_size = tokenizer.cell.options.get("patch_size")
    return Shape(options["model"], images_of(data or options["data"]).shape, patch_size or DEFAULT_PATCH_SIZE)


def masked_of(options: dict[str, Any]) -> tuple[Masked, TargetCost]:
    """The model that such options pretrain, and its goal."""
    shape = shape_of(options)
    if options["target"] == "tokens":
        target = tokens_of(options["tokenizer"], shape)
    elif options["target"] == "features":
        target = teacher_of(options["teacher"])
    else:
        pixels = options["target"] == "pixels"
        target = TargetCost(shape.patch_dim if pixels else hog_size(shape.patch_size, shape.image[0])[1])
    decoder = (options["decoder_width"], options["decoder_depth"])
    return Masked(shape, options["layout"], options["mask_ratio"], target.dim, *decoder), target
