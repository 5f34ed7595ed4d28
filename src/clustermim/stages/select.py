"""`clustermim advise` and `clustermim iterate`: the choice of tokenizers, in folders."""

from __future__ import annotations

from dataclasses import replace

from clustermim import selection
from clustermim.options import flat
from clustermim.pretraining import PRETRAINING, Architecture, Objective
from clustermim.selection import Advice, AdviseOptions, IterateOptions, Rounds
from clustermim.training import Schedule


@flat
def advise(data: str, out: str, teacher: list[str] | None = None, options: AdviseOptions = AdviseOptions()) -> Advice:
    """Fit several tokenizers, score them on some images, and recommend one to pretrain with.

    What is complete in `out` is not fitted again.

    Args:
        data: where the images to pretrain on are.
        out: the folder of all candidates, and of the advice.
        teacher: whose features to try as well, such as run:FOLDER; may be given several times.
    """
    return selection.advise(data, teachers=teacher or (), options=options, out=out)


@flat
def iterate(
    data: str,
    out: str,
    options: IterateOptions = IterateOptions(),
    architecture: Architecture = Architecture(patch_size=4),
    objective: Objective = Objective(),
    schedule: Schedule = replace(PRETRAINING, epochs=7),
) -> Rounds:
    """Pretrain on clusters of pixels, then again and again on clusters of the features of the encoder before.

    No outside teacher is needed. Whatever is complete in `out` is not done again, so a later call with more rounds
    continues; how to choose may differ in it, and holds from the first round that was not begun. The table has what
    each round cost, and all together.

    Args:
        data: where the images are.
        out: the folder of all rounds.
    """
    parts = {"options": options, "architecture": architecture, "objective": objective, "schedule": schedule}
    return selection.iterate(data, out=out, **parts)
