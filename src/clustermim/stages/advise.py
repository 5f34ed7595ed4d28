"""Which tokenizer to pretrain with, before any training, from a few labels or from none: `clustermim advise`."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from clustermim.data import Source, open_source
from clustermim.distributed import all_reduce_sum, process_group, rank
from clustermim.errors import ConfigError, TeacherError, TokenizerError
from clustermim.files import write_atomic
from clustermim.mean_ci import MeanCI
from clustermim.models.vit import find_size
from clustermim.patches import grid_size
from clustermim.progress import log_info
from clustermim.runs import SUMMARY, check_same_config, to_json
from clustermim.scores import score as score_tokenizer
from clustermim.scores.bags import PARTS
from clustermim.scores.collect import SAMPLE as IMAGES
from clustermim.stages.fit import fit_kmeans, fit_random_projection
from clustermim.tokenizers import Tokenizer, load_tokenizer

RECORD = "advice.json"
FEWEST = 64  # images of each part of them

Measure = Literal["transferability", "view_retrieval"]  # with labels, and without


class Candidate(NamedTuple):
    """A tokenizer to try: a name for its folder, and the options of its fit."""

    name: str
    options: dict[str, Any]


class Score(NamedTuple):
    """The promise or outlook of a candidate, part by part of the images."""

    name: str
    parts: list[float]

    @property
    def mean(self) -> float:
        return fmean(self.parts)

    def behind(self, best: Score) -> MeanCI:
        """By how much it is behind another; both saw the same images."""
        return MeanCI.of([theirs - mine for theirs, mine in zip(best.parts, self.parts, strict=True)])


def advise(
    data: str,
    out: str,
    budget: float = 10.0,
    patch_size: int = 4,
    teacher: list[str] | None = None,
    labelled: str | None = None,
    images: int = IMAGES,
    model: str = "micro",
    seed: int = 0,
) -> None:
    """Fit several tokenizers, score them on some images, and recommend one to pretrain with.

    Where images have labels the score is `promise`: what the tokens of an image tell of its class, less what they tell
    of this one image only. Without labels it is `outlook`: how often one random view of an image finds another by its
    tokens. Candidates are clusters of whitened windows, of pixels, of normalised pixels, of gradients and of the
    features of the teachers, and random projections. What is complete in `out` is not fitted again.

    Args:
        data: where the images to pretrain on are.
        out: the folder of all candidates, and of the advice.
        budget: minutes after which no other candidate is begun; the first two are always tried.
        patch_size: side of a patch in pixels.
        teacher: whose features to try as well, such as run:FOLDER; may be given several times.
        labelled: where labelled images are to score on, a few thousand; by default those of `data`, labelled or not.
        images: how many of them to score on, drawn at random.
        model: size of the encoder, for the command that is printed.
        seed: of the fits.
    """
    find_size(model)
    source, folder = open_source(data), Path(out)
    judges = open_source(labelled) if labelled else source
    measure = find_measure(judges, labelled is not None)
    check(judges, patch_size, budget, images)
    begun = time.monotonic()
    scores: list[Score] = []
    found = candidates(source.shape[0], teacher or ())
    with process_group():
        for number, candidate in enumerate(found):
            late = float(time.monotonic() - begun > 60 * budget)
            if len(scores) > 1 and float(all_reduce_sum(torch.tensor(late))):  # every rank leaves when one does
                log_info(f"the budget is spent: {len(found) - number} candidates were not tried")
                break
            try:
                tokenizer = fitted(candidate, source, folder / candidate.name, patch_size, seed)
            except (TokenizerError, TeacherError) as error:  # such as too few distinct patches for so many clusters
                if isinstance(error, TeacherError) and candidate.options.get("teacher") in (teacher or ()):
                    raise  # the user's own
                log_info(f"{candidate.name} is left out: {error}")
                continue
            scores.append(Score(candidate.name, measured(measure, tokenizer, judges, images)))
            if math.isnan(scores[-1].mean):
                raise ConfigError(f"too few images of {judges.spec} can be read to tell tokenizers apart")
            log_info(f"{candidate.name}: {measure} {scores[-1].mean:.4f}")
        if not scores:
            raise ConfigError(f"no candidate can be fitted to {data}: it has too few distinct patches")
        if rank() == 0:
            print_report(scores, measure, folder, data, patch_size, model)


def find_measure(source: Source, labels_promised: bool) -> Measure:
    """What to compare tokenizers by on these images; refuses images that were said to have labels and have none."""
    classes = 0 if source.labels is None else len(np.unique(source.labels))
    if classes > 1:
        return "transferability"
    missing = "no labels" if source.labels is None else "one class only"
    if labels_promised:
        raise ConfigError(f"--labelled {source.spec} has {missing}: it needs images of two classes at least")
    log_info(
        f"{source.spec} has {missing}: tokenizers are compared by outlook; a few labels, by --labelled, would tell more"
    )
    return "view_retrieval"


def measured(measure: Measure, tokenizer: Tokenizer, source: Source, images: int) -> list[float]:
    """The score of a tokenizer, part by part of the images."""
    found = score_tokenizer(tokenizer, source, scores=[measure], images=images).results[measure]
    return list(found.parts) or [math.nan] * PARTS


def check(source: Source, patch_size: int, budget: float, images: int) -> None:
    """Refuse what no advice can come of, before the first fit."""
    needed = PARTS * FEWEST
    if budget < 0:
        raise ConfigError(f"--budget {budget:g} is no time: 0 minutes at least")
    if min(images, len(source)) < needed:
        raise ConfigError(
            f"{min(images, len(source)):,} images are too few to tell tokenizers apart: {needed:,} at least"
        )
    if grid_size(*source.shape[1:], patch_size) == (1, 1):
        raise ConfigError(f"an image of {source.spec} is a single patch of {patch_size} pixels: lower --patch-size")


def candidates(channels: int, teachers: Sequence[str]) -> list[Candidate]:
    """What to try on images of so many channels, the usual first."""
    white = [Candidate(f"white-{k}", {"k": k, "space": "pixel-white"}) for k in (500, 200)]
    pixels = [Candidate(f"pixels-{k}", {"k": k}) for k in (50, 500)]
    features = [
        Candidate(f"teacher-{number}-{k}", {"k": k, "space": "features", "teacher": teacher})
        for k in (100, 500)
        for number, teacher in enumerate(teachers, 1)
    ]
    others = [
        Candidate("normalised-100", {"k": 100, "space": "pixel-norm"}),
        Candidate("gradients-100", {"k": 100, "space": "features", "teacher": f"hog:?channels={channels}"}),
        Candidate("random-projection-512", {"k": 512}),
    ]
    return [*white[:1], *pixels[:1], *features, *white[1:], *pixels[1:], *others]


def fitted(candidate: Candidate, source: Source, folder: Path, patch_size: int, seed: int) -> Tokenizer:
    """The candidate from its folder, fitted if it is not there yet."""
    options = {**candidate.options, "patch_size": patch_size, "seed": seed}
    if not (folder / SUMMARY).exists():
        stage = fit_random_projection if candidate.name.startswith("random") else fit_kmeans
        stage(data=source.spec, out=str(folder), **options)
    check_same_config(folder, options, source.fingerprint)
    return load_tokenizer(folder)


def print_report(
    scores: Sequence[Score], measure: Measure, folder: Path, data: str, patch_size: int, model: str
) -> None:
    """Print the ranking and the recommendation, and write both down."""
    ranked = sorted(scores, key=lambda score: -score.mean)
    best = ranked[0]
    table = Table(title=f"Tokenizers for {data}", title_justify="left")
    for name, justify in (("", "left"), (measure, "right"), ("behind the best", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    rivals = []
    for score in ranked:
        behind = score.behind(best)
        low, high = behind.interval() or (0.0, 0.0)
        text = "" if score is best else f"{behind.mean:.4f} ({low:.4f} … {high:.4f})"
        table.add_row(score.name, f"{score.mean:.4f}", text)
        if score is not best and low <= 0:
            rivals.append(score.name)
    words = ["clustermim", "pretrain", "--data", data, "--model", model, "--patch-size", str(patch_size)]
    command = shlex.join([*words, "--tokenizer", str(folder / best.name), "--out", "RUN"])
    record = {
        "recommended": best.name,
        "not_told_apart": rivals,
        "scores": {score.name: {measure: score.mean, "parts": score.parts} for score in ranked},
        "command": command,
    }
    write_atomic(folder / RECORD, (to_json(record, indent=1) + "\n").encode())
    Console(highlight=False).print(table)
    doubt = f"; these images do not tell it from {', '.join(rivals)}" if rivals else ""
    print(f"recommended: {best.name}{doubt}\n{command}")
