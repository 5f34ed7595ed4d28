"""`advise`: which tokenizer to pretrain with, before any training, from a few labels or from none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clustermim.data import Source, open_source
from clustermim.distributed import all_reduce_sum, rank
from clustermim.errors import ConfigError, TeacherError, TokenizerError
from clustermim.files import write_atomic
from clustermim.mean_ci import MeanCI
from clustermim.options import flat
from clustermim.patches import grid_size
from clustermim.progress import log_info
from clustermim.results import Result, Table
from clustermim.runs import to_json
from clustermim.scores import SCORES, Value, score
from clustermim.scores.bags import PARTS
from clustermim.scores.collect import SAMPLE
from clustermim.selection.candidates import Candidate, check_by, ranked
from clustermim.tokenizers import LearnedTokenizer, RandomProjectionTokenizer, Tokenizer

RECORD = "advice.json"
FEWEST = 64  # images of each part of them
# What transferability is worth, by the records of cifar10-tokenizers and imagenette-tokenizers: ten classes, micro.
POINTS = 48.0  # of linear probe, for 1 of transferability
DOUBT = 2.0  # points, within which 95 % of the differences between tokenizers were as that says
# Points of linear probe that its first choice lay below the best, at most, among those made without labels.
REGRETS = {"transferability": 0.0, "view_retrieval": 2.9}
# Points of linear probe that clusters of a ViT teacher's features gave more than POINTS says (imagenette-rivals).
UNDERRATED = 9.2
KNOWN = 0.5  # the largest transferability of tokenizers made without the labels of the images themselves


@dataclass(frozen=True)
class AdviseOptions:
    """How to compare tokenizers.

    Args:
        budget: minutes after which no other candidate is begun; the first two are always tried.
        patch_size: side of a patch in pixels.
        labelled: labelled images to score on, a few thousand; by default those to pretrain on, labelled or not.
        images: how many of them to score on, drawn at random.
        by: the score to compare by; by default transferability, and view_retrieval where there are no labels.
        seed: of the fits.
    """

    budget: float = 10.0
    patch_size: int = 4
    labelled: str | None = None
    images: int = SAMPLE
    by: str | None = None
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """Tokenizers in the order of a score, the best first, and the best one itself.

    `of_teachers` are those that cluster the features of a teacher.
    """

    data: str
    by: str
    results: Mapping[str, Value]
    tokenizer: Tokenizer
    of_teachers: frozenset[str] = frozenset()

    @property
    def best(self) -> str:
        """The name of the recommended one."""
        return next(iter(self.results))

    def behind(self, name: str) -> MeanCI:
        """By how much one is behind the best; both were scored on the same images."""
        sign = 1 if SCORES[self.by].higher_is_better else -1
        best, own = (found.parts or (found.value,) for found in (self.results[self.best], self.results[name]))
        return MeanCI.of([sign * (theirs - mine) for theirs, mine in zip(best, own, strict=True)])

    def points_behind(self, name: str) -> float | None:
        """How many points of linear probe less to expect than of the best, ± DOUBT; None where nothing is known."""
        known = self.by == "transferability" and self.results[self.best].value <= KNOWN
        known = known and not {name, self.best} & self.of_teachers
        return POINTS * self.behind(name).mean if known else None

    @property
    def rivals(self) -> list[str]:
        """Those that these images do not tell from the best."""
        others = [name for name in self.results if name != self.best]
        return [name for name in others if (self.behind(name).interval() or (math.inf,))[0] <= 0]

    def to_dict(self) -> dict[str, Any]:
        """The recommendation and all scores, as advice.json holds them."""
        scores = {
            name: {self.by: found.value, "parts": list(found.parts), "points_behind": self.points_behind(name)}
            for name, found in self.results.items()
        }
        return {"recommended": self.best, "not_told_apart": self.rivals, "scores": scores}

    def table(self) -> Table:
        """Each with its distance to the best, and which to take."""
        columns, rows = ["tokenizer", self.by, "behind the best", "points of linear probe"], []
        for name, found in self.results.items():
            behind, points = self.behind(name), self.points_behind(name)
            ends = behind.interval()
            interval = f" ({ends[0]:.4f} … {ends[1]:.4f})" if ends else ""
            row = [
                name,
                f"{found.value:.4f}",
                f"{behind.mean:.4f}{interval}",
                "" if points is None else f"{points:.1f}",
            ]
            rows.append([*row[:2], "", ""] if name == self.best else row)
        known = any(self.points_behind(name) is not None for name in self.results)
        if not known:
            columns, rows = columns[:3], [row[:3] for row in rows]
        doubt = f"; these images do not tell it from {', '.join(self.rivals)}" if self.rivals else ""
        said = [f"recommended: {self.best}{doubt}"]
        if known:
            said.append(f"Points are what to expect, ± {DOUBT:g}, from two studies with ten classes (docs/scores.md).")
        if self.of_teachers and self.by == "transferability":
            said.append(
                "transferability may underrate clusters of a teacher's features: in one of our studies they gave up to "
                f"{UNDERRATED:g} points more than it says. Pretrain with the best of them too."
            )
        elif self.by in REGRETS:
            below = f"at most {REGRETS[self.by]:g} points below the best" if REGRETS[self.by] else "the best"
            said.append(f"In two studies the first by {self.by} was {below} of those made without labels.")
        return Table(f"Tokenizers for {self.data}", columns, rows, "\n".join(said))

    def __repr__(self) -> str:
        return f"Advice({self.best}, the best of {len(self.results)} by {self.by})"


@flat
def advise(
    source: object,
    *,
    teachers: Sequence[Any] = (),
    options: AdviseOptions = AdviseOptions(),
    out: str | Path | None = None,
) -> Advice:
    """Fit several tokenizers, score them on some images, and recommend one to pretrain with.

    Where images have labels the score is transferability: what the tokens of an image say of its class, less what they
    say of this one image only. Without labels it is view_retrieval: how often one random view of an image finds another
    by its tokens. Candidates are clusters of whitened windows, of pixels, of normalised pixels, of gradients and of the
    features of the teachers, random projections, and learned codebooks.

    >>> advise("textures:?images=512&grid=4&patch=4", budget=0)
    Advice(white-500, the best of 2 by transferability)

    Args:
        source: the images to pretrain on.
        teachers: whose features to try as well, such as run:FOLDER.
        out: a folder to keep all candidates in, and advice.json; what is complete there is not fitted again.
    """
    opened = open_source(source)
    judges = open_source(options.labelled) if options.labelled else opened
    by = _check(judges, options)
    begun, results, best = time.monotonic(), dict[str, Value](), None
    tried = candidates(opened.shape[0], teachers)
    for number, candidate in enumerate(tried):
        late = float(time.monotonic() - begun > 60 * options.budget)
        if len(results) > 1 and float(all_reduce_sum(torch.tensor(late))):  # every rank leaves when one does
            log_info(f"the budget is spent: {len(tried) - number} candidates were not tried")
            break
        tokenizer = _fitted(candidate, opened, teachers, options, out)
        if tokenizer is None:
            continue
        beside = opened if len(opened) > len(judges) else None  # the more images, the better halves are told
        measured = score(tokenizer, judges, scores=[by], images=options.images, unlabelled=beside)
        found = results[candidate.name] = measured.results[by]
        if math.isnan(found.value):
            raise ConfigError(f"{judges.spec} does not tell tokenizers apart: {found.note}")
        log_info(f"{candidate.name}: {by} {found.value:.4f}")
        best = tokenizer if ranked(results, by)[0] == candidate.name else best
    if best is None:
        raise ConfigError(f"no candidate can be fitted to {opened.spec}: it has too few distinct patches")
    of_teachers = frozenset(one.name for one in tried if one.options.get("teacher") in teachers and one.name in results)
    advice = Advice(opened.spec, by, {name: results[name] for name in ranked(results, by)}, best, of_teachers)
    if out is not None and rank() == 0:
        write_atomic(Path(out) / RECORD, (to_json(advice.to_dict(), indent=1) + "\n").encode())
    return advice


def _fitted(
    candidate: Candidate, source: Source, teachers: Sequence[Any], options: AdviseOptions, out: str | Path | None
) -> Tokenizer | None:
    """The candidate, fitted; None where it cannot be, such as with too few distinct patches for so many clusters."""
    try:
        return candidate.fitted(source, out, patch_size=options.patch_size, seed=options.seed)
    except (TokenizerError, TeacherError) as error:
        if isinstance(error, TeacherError) and candidate.options.get("teacher") in teachers:
            raise  # the user's own
        log_info(f"{candidate.name} is left out: {error}")
        return None


def candidates(channels: int, teachers: Sequence[Any]) -> list[Candidate]:
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
        Candidate("random-projection-512", {"k": 512}, RandomProjectionTokenizer),
        *(
            Candidate(f"{kind}-512", {"kind": kind, "k": 512}, LearnedTokenizer) for kind in ("vq", "dvae")
        ),  # take longest
    ]
    return [*white[:1], *pixels[:1], *features, *white[1:], *pixels[1:], *others]


def _check(source: Source, options: AdviseOptions) -> str:
    """What to compare by on these images; refuses what no advice can come of, before the first fit."""
    missing = "no labels" if source.labels is None else "one class only" if len(np.unique(source.labels)) < 2 else ""
    by = options.by or ("view_retrieval" if missing else "transferability")
    check_by(by)
    if missing and (options.labelled or SCORES[by].needs_labels):
        what = f"--labelled {source.spec}" if options.labelled else source.spec
        raise ConfigError(f"{what} has {missing}: it needs images of two classes at least")
    if missing and options.by is None:
        hint = "a few labels, by --labelled, would say more"
        log_info(f"{source.spec} has {missing}: tokenizers are compared by view_retrieval; {hint}")
    count, needed = min(options.images, len(source)), PARTS * FEWEST
    if options.budget < 0:
        raise ConfigError(f"--budget {options.budget:g} is no time: 0 minutes at least")
    if count < needed:
        remedy = "without advice, begin with `clustermim fit kmeans --space pixel-white`"
        raise ConfigError(f"{count:,} images are too few to tell tokenizers apart, {needed:,} at least: {remedy}")
    if grid_size(*source.shape[1:], options.patch_size) == (1, 1):
        what = f"an image of {source.spec} is a single patch of {options.patch_size} pixels"
        raise ConfigError(f"{what}: lower --patch-size")
    return by
