"""`clustermim advise` and `clustermim iterate`: the choice of tokenizers, in folders."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from clustermim import selection
from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.models.vit import find_size
from clustermim.options import flat
from clustermim.pretraining import PRETRAINING, Architecture, Objective
from clustermim.runs import to_json
from clustermim.scores import SCORES
from clustermim.selection import AdviseOptions, IterateOptions
from clustermim.stage_table import hint
from clustermim.training import Schedule

RECORD = "advice.json"


@flat
def advise(
    data: str,
    out: str,
    teacher: list[str] | None = None,
    options: AdviseOptions = AdviseOptions(),
    model: str = "micro",
) -> None:
    """Fit several tokenizers, score them on some images, and recommend one to pretrain with.

    What is complete in `out` is not fitted again.

    Args:
        data: where the images to pretrain on are.
        out: the folder of all candidates, and of the advice.
        teacher: whose features to try as well, such as run:FOLDER; may be given several times.
        model: size of the encoder, for the command that is printed.
    """
    find_size(model)
    _check_name(options.by)
    with process_group():
        found = selection.advise(data, teachers=teacher or (), options=options, out=out)
        words = ["clustermim", "pretrain", "--data", data, "--model", model, "--patch-size", str(options.patch_size)]
        command = shlex.join([*words, "--tokenizer", str(Path(out) / found.best), "--out", "RUN"])
        if rank() == 0:
            record = to_json({**found.to_dict(), "command": command}, indent=1)
            write_atomic(Path(out) / RECORD, f"{record}\n".encode())
            print(f"{found}\n{command}")


@flat
def iterate(
    data: str,
    out: str,
    options: IterateOptions = IterateOptions(),
    architecture: Architecture = Architecture(patch_size=4),
    objective: Objective = Objective(),
    schedule: Schedule = replace(PRETRAINING, epochs=7),
) -> None:
    """Pretrain on clusters of pixels, then again and again on clusters of the features of the encoder before.

    No outside teacher is needed. Whatever is complete in `out` is not done again, so a later call with more rounds
    continues; how to choose may differ in it, and holds from the first round that was not begun.

    Args:
        data: where the images are.
        out: the folder of all rounds.
    """
    _check_name(options.choose)
    with process_group():
        parts = {"options": options, "architecture": architecture, "objective": objective, "schedule": schedule}
        found = selection.iterate(data, out=out, **parts)
        if rank() == 0:
            print(found)


def _check_name(score: str | None) -> None:
    """Tell who writes a name of an earlier version the one of today."""
    if score is not None and score not in SCORES:
        raise ConfigError(f"there is no score {score!r}{hint(score, SCORES)}")
