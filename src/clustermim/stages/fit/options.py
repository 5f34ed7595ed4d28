"""Options that several stages share, each written once: `options_of` gives them to a stage, with defaults and docs.

A function below is a group of options and is never called: its parameters and the lines of its docstring are used.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from clustermim.data.augment import Augment
from clustermim.training import Device, Precision


def autoencoder(data: str, out: str, k: int = 512, patch_size: int = 16, width: int = 64, depth: int = 2) -> None:
    """What every learned tokenizer is made of.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
    """


def codebook(
    code_dim: int = 32,
    cosine: bool = False,
    decay: float = 0.99,
    dead_code_threshold: float = 0.1,
    commitment: float = 0.25,
) -> None:
    """The quantizer of VQ, VQGAN and PeCo.

    Args:
        code_dim: width of the codebook's vectors.
        cosine: compare directions only.
        decay: of the moving averages that the codebook consists of, a step.
        dead_code_threshold: a token used less than this share of an even use starts anew at a random patch; 0 is never.
        commitment: weight of the loss that keeps features near their vectors.
    """


def perceptual(teacher: list[str] | None = None, perceptual_weight: float = 1.0) -> None:
    """A loss on a teacher's features, of VQGAN and PeCo.

    Args:
        teacher: whose features a reconstruction should keep, such as run:FOLDER?layer=2; may be given several times.
        perceptual_weight: of this loss.
    """


def schedule(
    epochs: int = 3,
    batch_size: int = 64,
    base_lr: float = 4e-3,
    augment: Augment = "pad-crop",
    seed: int = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """How every learned tokenizer is trained.

    Args:
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
        seed: the same seed, data and machine give the same bytes on a CPU.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        stop_after: leave after so many epochs of the schedule, to resume later; for queues that give few hours.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """


Stage = Callable[..., None]


def options_of(*before: Stage, after: Stage = schedule) -> Callable[[Stage], Stage]:
    """Give a stage the options of these groups, before and after its own; it receives them as `**shared`.

    Its own line about an option of a group replaces the group's.
    """

    def decorate(function: Stage) -> Stage:
        own = [p for p in _parameters(function) if p.kind is not inspect.Parameter.VAR_KEYWORD]
        groups = [*(_parameters(group) for group in before), own, _parameters(after)]
        signature = inspect.Signature([p for group in groups for p in group], return_annotation=None)

        @wraps(function)
        def stage(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            function(**bound.arguments)

        del stage.__wrapped__  # whose options are not all
        stage.__doc__ = _merged_docs(function, [*before, function, after], list(signature.parameters))
        stage.__signature__ = signature  # type: ignore[attr-defined]
        return stage

    return decorate


def _parameters(function: Stage) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _merged_docs(function: Stage, groups: list[Stage], names: list[str]) -> str:
    """The function's docstring with a line for every option, in their order."""
    lines: dict[str, str] = {}
    for group in [*groups, function]:
        lines |= dict(re.findall(r"^ {8}(\w+): (.*)$", group.__doc__ or "", re.MULTILINE))
    about = (function.__doc__ or "").partition("\n\n    Args:")[0].rstrip()
    return "\n".join([about, "", "    Args:", *(f"        {name}: {lines[name]}" for name in names), "    "])
