"""What the decoder predicts of a masked patch, and its loss. A new target is one class and one entry in `TARGETS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from clustermim.data import Source
from clustermim.errors import ConfigError, DataError, TokenizerError, did_you_mean
from clustermim.factories import PREFIX
from clustermim.options import flat
from clustermim.patches import DEFAULT_PATCH_SIZE
from clustermim.targets.kinds import (
    UNMASKED,
    FeatureTarget,
    HOGTarget,
    PixelLoss,
    PixelTarget,
    Target,
    TargetOptions,
    TokenTarget,
    VectorTarget,
)
from clustermim.targets.several import MultiTokenTarget
from clustermim.teachers import open_teacher
from clustermim.tokenizers import Tokenizer, load_tokenizer
from clustermim.tokenizers.base import DESCRIPTION

__all__ = [
    "ONLINE",
    "TARGETS",
    "UNMASKED",
    "FeatureTarget",
    "HOGTarget",
    "MultiTokenTarget",
    "PixelLoss",
    "PixelTarget",
]
__all__ += ["Target", "TargetOptions", "TokenTarget", "VectorTarget", "check_options", "make_target"]

KINDS: tuple[type[Target], ...] = (
    PixelTarget,
    HOGTarget,
    FeatureTarget,
    TokenTarget,
    MultiTokenTarget,
    VectorTarget,
)
ONLINE = (
    "online"  # the name of a target that is no entry: it is made of the encoder that is trained (`targets/online.py`)
)
TARGETS = {kind.kind: kind for kind in KINDS}


@flat
def make_target(
    target: object, source: Source, *, patch_size: int | None = None, options: TargetOptions = TargetOptions()
) -> Target:
    """What is to be predicted of the images of a source, checked against them.

    Args:
        target: a target, a tokenizer, a teacher or an encoder; several tokenizers; a name of `TARGETS`; or a text that
            names one: the folder of a tokenizer or of an encoder, `hf:NAME`, ….
        source: the images.
        patch_size: side of a patch in pixels; by default that of the target or tokenizer, and otherwise 4.
    """
    found, name = _find(target, source, patch_size, options), f"the tokenizer {options.tokenizer or target}"
    wanted = patch_size or found.patch_size
    tokenized = isinstance(found, TokenTarget | MultiTokenTarget | VectorTarget)
    if found.patch_size != wanted or (tokenized and found.channels != source.shape[0]):
        raise TokenizerError(
            f"{name if tokenized else 'the target'} is for patches of {found.patch_size} pixels "
            f"and {found.channels} channels, and the model for {wanted} and {source.shape[0]}: fit one that agrees"
        )
    if found.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and {name} is made of them")
    if found.needs_labels and len(source.class_names) > found.dim:
        raise DataError(f"{source.spec} has {len(source.class_names)} classes, and {name} knows {found.dim}")
    found(torch.zeros(1, *source.shape), torch.zeros(1, dtype=torch.long))  # a grid that it cannot take is refused
    return found


def _find(target: object, source: Source, patch_size: int | None, options: TargetOptions) -> Target:
    """The target itself, not yet checked against the images."""
    if isinstance(target, str | Path) and target not in TARGETS:
        text = str(target)
        if ":" not in text and not Path(text).is_dir():
            where = "nor such a folder of a tokenizer or an encoder"
            raise ConfigError(f"there is no target {text!r}, {where}{did_you_mean(text, (*TARGETS, ONLINE))}")
        is_tokenizer = text.startswith(PREFIX) or (Path(text) / DESCRIPTION).is_file()
        target = load_tokenizer(text) if is_tokenizer else open_teacher(text)
    if callable(target) and hasattr(target, "vocab_size") and not isinstance(target, Target):
        target = load_tokenizer(target)
    if isinstance(target, list | tuple):
        target = MultiTokenTarget([load_tokenizer(one) for one in target], options.label_smoothing)
    elif isinstance(target, Tokenizer):
        target = TokenTarget(target, options.label_smoothing)
    elif not isinstance(target, Target | str):
        target = FeatureTarget(open_teacher(target), patch_size or DEFAULT_PATCH_SIZE)
    known = TARGETS[target] if isinstance(target, str) else type(target)
    check_options(known.kind, known.takes, options)
    return known.build(source, patch_size, options) if isinstance(target, str) else target


def check_options(kind: str, takes: Sequence[str], options: TargetOptions) -> None:
    """Refuse options that a kind of target does not take."""
    for field in fields(options):
        if getattr(options, field.name) != field.default and field.name not in takes:
            home = next(name for name, other in TARGETS.items() if field.name in other.takes)
            raise ConfigError(f"--{field.name.replace('_', '-')} is for --target {home}, not {kind}")
