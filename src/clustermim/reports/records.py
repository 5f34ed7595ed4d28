"""From run folders to plain records: tokenizers with their scores, pretrained encoders with their accuracies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clustermim.reports.collect import RunInfo
from clustermim.reports.values import Value, accuracies_of, number, places_of, scores_of

# Options that say where or how fast, or that have a column of their own.
NO_DIFFERENCE = {"stage", "tokenizer", "target", "device", "precision", "compile", "k", "backend", "weights"}
CELL = re.compile(r"-[0-9a-f]{12}$")  # how a study ends the name of a folder


@dataclass(frozen=True)
class TokenizerRecord:
    """A tokenizer and its scores on one source."""

    found: RunInfo
    title: str
    kind: str
    vocab_size: int
    patch_size: int | None
    differs: str  # options in which tokenizers of its kind differ
    scores: dict[str, Value]  # by the keys of SCORES
    used: int | None
    scored_on: str | None
    classes: int  # of the source it was scored on; 0 if it was not

    @property
    def name(self) -> str:
        """As in a table, where what differs stands beside it."""
        return f"{self.kind} {self.vocab_size}" if is_cell(self.found) else self.title


@dataclass(frozen=True)
class PretrainRecord:
    """A pretrained encoder and its accuracies on one source."""

    found: RunInfo
    title: str
    target: str
    tokenizer: TokenizerRecord | None  # None too where its folder was not among those named
    predicts: str  # what it predicts, in words
    differs: str
    accuracies: dict[str, Value]  # in percent, by the keys of MEASURES
    measured_on: str | None = None

    @property
    def name(self) -> str:
        """As in a table, where what differs stands beside it."""
        return self.predicts if is_cell(self.found) else self.title


@dataclass(frozen=True)
class Records:
    """All that the page shows of the runs."""

    tokenizers: list[TokenizerRecord] = field(default_factory=list)
    pretrained: list[PretrainRecord] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # accuracies for which there was no place


def is_cell(run: RunInfo) -> bool:
    """Whether a folder was named by a study, for a machine: people get names that are made of its options."""
    return bool(CELL.search(run.folder.resolve().name))


def make_records(found: Sequence[RunInfo]) -> Records:
    """Tie scores to tokenizers and accuracies to encoders."""
    fits = [run for run in found if run.stage.startswith("fit ")]
    pretrained = [run for run in found if run.stage == "pretrain"]
    scores = [run for run in found if run.stage == "score"]
    measured = [run for run in found if run.stage in ("probe", "knn", "finetune")]
    tokenizers = _tokenizers(fits, [(owner(run, "tokenizer", fits), run) for run in scores])
    encoders, left_out = _pretrained(pretrained, tokenizers, [(owner(run, "run", pretrained), run) for run in measured])
    tokenizers.sort(key=lambda record: (record.found.data or "", natural(record.title)))
    encoders.sort(key=lambda record: natural(record.title))
    return Records(tokenizers, encoders, left_out)


def unique(records: Sequence[PretrainRecord]) -> list[PretrainRecord]:
    """Every run once, on however many sources it was measured."""
    return list({id(record.found): record for record in reversed(records)}.values())[::-1]


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside text by their value.

    >>> sorted(["k-50", "k-5", "k-10"], key=natural)
    ['k-5', 'k-10', 'k-50']
    """
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def owner(run: RunInfo, option: str, among: Sequence[RunInfo]) -> RunInfo | None:
    """The run that another one was made of: it lies inside, or names its folder, wherever that was moved to."""
    for other in among:
        if other.folder.resolve() == run.folder.resolve().parent:
            return other
    named = run.config.get(option)
    if not isinstance(named, str) or not named or "\0" in named:
        return None
    for other in among:
        if other.folder.resolve() == Path(named).resolve():
            return other
    same = [other for other in among if other.folder.resolve().name == Path(named).name]
    return same[0] if len(same) == 1 else None


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """For each of some configurations, the options in which they differ, in words."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in NO_DIFFERENCE)
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    return [", ".join(f"{k} {config[k]}" for k in differing if config.get(k) is not None) for config in configs]


def first_distinct(candidates: Sequence[Sequence[str]]) -> list[str]:
    """The titles at the first place at which no two lists agree; titles grow longer along a list.

    >>> first_distinct([["a", "x/a"], ["a", "y/a"], ["b", "y/b"]])
    ['x/a', 'y/a', 'y/b']
    """
    for titles in zip(*candidates, strict=True):
        if len(set(titles)) == len(titles):
            break
    return list(titles) if candidates else []


def _titles(runs: Sequence[RunInfo], made: Iterable[str], differs: Iterable[str]) -> list[str]:
    """The folder's own name, or a made one for a study's cell; longer where two are equal."""
    places = [run.folder.resolve() for run in runs]
    cells, named = ([i for i, run in enumerate(runs) if is_cell(run) is wanted] for wanted in (True, False))
    both = list(zip(made, differs, strict=True))
    long = [", ".join(filter(None, words)) for words in both]
    titles = dict(
        zip(
            cells,
            first_distinct([(both[i][0], long[i], f"{long[i]}, {places[i].name[-12:]}") for i in cells]),
            strict=True,
        )
    )
    folders = [(places[i].name, f"{places[i].parent.name}/{places[i].name}", str(places[i])) for i in named]
    titles |= zip(named, first_distinct(folders), strict=True)
    return [titles[i] for i in range(len(runs))]


def _tokenizers(fits: Sequence[RunInfo], scored: Sequence[tuple[RunInfo | None, RunInfo]]) -> list[TokenizerRecord]:
    kinds = [run.stage.removeprefix("fit ") for run in fits]
    differs = _differences_of_kin(fits)
    sizes = [int(number(run.results.get("vocab_size")) or 0) for run in fits]
    titles = _titles(fits, [f"{kind} {size}" for kind, size in zip(kinds, sizes, strict=True)], differs)
    records = []
    for place, run in enumerate(fits):
        best = _best_score([score for fit, score in scored if fit is run])
        results = best.results if best else {}
        used = number(results.get("used"))
        patch = number(run.config.get("patch_size")) or number(run.results.get("patch_size"))
        records.append(
            TokenizerRecord(
                found=run,
                title=titles[place],
                kind=kinds[place],
                vocab_size=sizes[place],
                patch_size=None if patch is None else int(patch),
                differs=differs[place],
                scores=scores_of(results),
                used=None if used is None else int(used),
                scored_on=best.data if best else None,
                classes=int(number((best.summary.get("data") or {}).get("classes")) or 0) if best else 0,
            )
        )
    return records


def _differences_of_kin(fits: Sequence[RunInfo]) -> list[str]:
    """The options in which tokenizers of one kind, fitted on the same data, differ."""
    kin: dict[tuple[str, str | None], list[int]] = {}
    for place, run in enumerate(fits):
        kin.setdefault((run.stage, run.data), []).append(place)
    words = {
        place: text
        for places in kin.values()
        for place, text in zip(places, differences([fits[i].config for i in places]), strict=True)
    }
    return [words[place] for place in range(len(fits))]


def _best_score(scores: Sequence[RunInfo]) -> RunInfo | None:
    """Of several scores of a tokenizer the one in the plain reading, on the most images."""

    def rank(run: RunInfo) -> tuple[bool, float]:
        return str(run.results.get("variant")).startswith("plain"), number(run.results.get("images")) or 0

    return max(scores, key=rank, default=None)


def _pretrained(
    runs: Sequence[RunInfo], tokenizers: Sequence[TokenizerRecord], measured: Sequence[tuple[RunInfo | None, RunInfo]]
) -> tuple[list[PretrainRecord], list[str]]:
    """The encoders with their accuracies, and what is said of accuracies that are left out."""
    differs = differences([run.config for run in runs])
    by_fit = {id(record.found): record for record in tokenizers}
    owners = [owner(run, "tokenizer", [record.found for record in tokenizers]) for run in runs]
    owned = [None if fit is None else by_fit[id(fit)] for fit in owners]
    predicts = [_predicts(run, tokenizer) for run, tokenizer in zip(runs, owned, strict=True)]
    records, left_out = [], []
    places = places_of([measure for _, measure in measured])
    for run, title, differ, tokenizer, words in zip(
        runs, _titles(runs, predicts, differs), differs, owned, predicts, strict=True
    ):
        mine: dict[str | None, dict[str, Value]] = {}
        for (encoder, measure), place in zip(measured, places, strict=True):
            found = accuracies_of(measure) if encoder is run else {}
            here = mine.setdefault(place, {}) if found else {}
            if here.keys() & found.keys():
                left_out.append(f"{measure.folder}: another measurement of the same kind is shown of {title}")
            else:
                here |= found
        target = str(run.config.get("target"))
        for source, accuracies in (mine or {None: {}}).items():
            records.append(PretrainRecord(run, title, target, tokenizer, words, differ, accuracies, source))
    return records, left_out


def _predicts(run: RunInfo, tokenizer: TokenizerRecord | None) -> str:
    """The target in words: that of tokens is their tokenizer."""
    target = str(run.config.get("target"))
    if target != "tokens":
        return "normalised pixels" if target == "pixels" and run.config.get("normalize_pixels") else target
    if tokenizer is not None:
        return tokenizer.title
    return f"tokens of {Path(str(run.config.get('tokenizer'))).name}"
