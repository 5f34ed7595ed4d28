"""From run folders to plain records: tokenizers with their scores, pretrained encoders with their accuracies."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from clustermim.reports.collect import RunInfo
from clustermim.scores import SCORES

# Options that say where or how fast, or that have a column of their own.
NO_DIFFERENCE = {"stage", "tokenizer", "target", "device", "precision", "compile", "k", "backend", "weights"}
CELL = re.compile(r"-[0-9a-f]{12}$")  # how a study ends the name of a folder: for machines, so people get another name
# The accuracies of an encoder by the key that `accuracies_of` gives them, in the order of the table.
MEASURES = {
    "probe avg": "linear probe",
    "probe cls": "linear probe, class token",
    "probe-predictor avg": "linear probe of the predictor",
    "mae avg": "linear probe by SGD",
    "mae cls": "linear probe by SGD, class token",
    "knn avg": "kNN",
    "knn cls": "kNN, class token",
    "knn-predictor avg": "kNN of the predictor",
    "knn avg whitened": "kNN, whitened",
    "knn cls whitened": "kNN, whitened class token",
    "finetune": "fine-tuned",
}


class Measurement(NamedTuple):
    """A number, with its 95 % interval when it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class TokenizerRecord:
    """A tokenizer and its scores on one source."""

    found: RunInfo
    title: str
    differs: str  # options in which tokenizers of its kind differ
    kind: str
    vocab_size: int
    scores: dict[str, Measurement] = field(default_factory=dict)  # by the names of SCORES
    used: int | None = None
    scored_on: str | None = None


@dataclass(frozen=True)
class PretrainRecord:
    """A pretrained encoder and its accuracies on one source."""

    found: RunInfo
    title: str
    differs: str
    target: str
    predicts: str  # the target in words
    tokenizer: TokenizerRecord | None = None  # None too where its folder was not among those named
    accuracies: dict[str, Measurement] = field(default_factory=dict)  # in percent, by the keys of MEASURES
    measured_on: str | None = None


@dataclass(frozen=True)
class Records:
    """All that the page shows of the runs."""

    tokenizers: list[TokenizerRecord]
    pretrained: list[PretrainRecord]
    left_out: list[str]  # accuracies for which there was no place


def make_records(found: Sequence[RunInfo]) -> Records:
    """Tie scores to tokenizers and accuracies to encoders."""
    fits = [run for run in found if run.stage.startswith("fit ")]
    pretrained = [run for run in found if run.stage == "pretrain"]
    scored = [(owner(run, "tokenizer", fits), run) for run in found if run.stage == "score"]
    measured = [run for run in found if run.stage in ("probe", "knn", "finetune")]
    tokenizers = _tokenizers(fits, scored)
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
    named = run.config.get(option)
    # its text alone: the file system is not asked about a path that a stranger may have written
    named = Path(os.path.abspath(named)) if isinstance(named, str) and named and "\0" not in named else None
    for place in (run.folder.resolve().parent, named):
        for other in among:
            if other.folder.resolve() == place:
                return other
    same = [other for other in among if named and other.folder.resolve().name == named.name]
    return same[0] if len(same) == 1 else None


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """For each of some configurations, the options in which they differ, in words."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in NO_DIFFERENCE)
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    return [", ".join(f"{k} {config[k]}" for k in differing if config.get(k) is not None) for config in configs]


def first_distinct(candidates: Sequence[Sequence[str]]) -> list[str]:
    """For each list of titles, which grow longer, the first that no other list has at its place; or the last.

    >>> first_distinct([["a", "x/a"], ["a", "y/a"], ["b", "y/b"]])
    ['x/a', 'y/a', 'b']
    """
    counts = [Counter(titles) for titles in zip(*candidates, strict=True)]
    return [next((t for t, count in zip(own, counts, strict=True) if count[t] == 1), own[-1]) for own in candidates]


def _titles(runs: Sequence[RunInfo], made: Sequence[str], differs: Sequence[str]) -> list[str]:
    """The title of each: the folder's own name, or the made one for a study's cell; longer where some are equal."""
    candidates = []
    for run, short, words in zip(runs, made, differs, strict=True):
        place = run.folder.resolve()
        long = f"{short}, {words}" if words else short
        cell = (short, long, f"{long}, {place.name[-12:]}")
        named = (place.name, f"{place.parent.name}/{place.name}", str(place))
        candidates.append(cell if CELL.search(place.name) else named)
    return first_distinct(candidates)


def _tokenizers(fits: Sequence[RunInfo], scored: Sequence[tuple[RunInfo | None, RunInfo]]) -> list[TokenizerRecord]:
    kinds = [run.stage.removeprefix("fit ") for run in fits]
    sizes = [int(as_float(run.results.get("vocab_size")) or 0) for run in fits]
    differs = [""] * len(fits)
    for group in dict.fromkeys((run.stage, run.data) for run in fits):
        places = [i for i, run in enumerate(fits) if (run.stage, run.data) == group]
        for i, words in zip(places, differences([fits[i].config for i in places]), strict=True):
            differs[i] = words
    titles = _titles(fits, [f"{kind} {size}" for kind, size in zip(kinds, sizes, strict=True)], differs)

    def rank(run: RunInfo) -> tuple[bool, float]:
        """Of several scores the plain variant comes first, then the most images."""
        return str(run.results.get("variant")).startswith("plain"), as_float(run.results.get("images")) or 0

    records = []
    for i, run in enumerate(fits):
        record = TokenizerRecord(run, titles[i], differs[i], kinds[i], sizes[i])
        best = max((score for fit, score in scored if fit is run), key=rank, default=None)
        if best is not None:
            used, scores = int(as_float(best.results.get("used")) or 0), scores_of(best.results)
            record = replace(record, scores=scores, used=used, scored_on=best.data)
        records.append(record)
    return records


def _pretrained(
    runs: Sequence[RunInfo], tokenizers: Sequence[TokenizerRecord], measured: Sequence[tuple[RunInfo | None, RunInfo]]
) -> tuple[list[PretrainRecord], list[str]]:
    """The encoders with their accuracies, and what is said of accuracies that are left out."""
    differs = differences([run.config for run in runs])
    by_fit = {id(record.found): record for record in tokenizers}
    owned = [by_fit.get(id(owner(run, "tokenizer", [record.found for record in tokenizers]))) for run in runs]
    predicts = [_predicts(run, tokenizer) for run, tokenizer in zip(runs, owned, strict=True)]
    titles = _titles(runs, predicts, differs)
    records, left_out = [], []
    sources = sources_of([measure for _, measure in measured])
    for i, run in enumerate(runs):
        mine: dict[str | None, dict[str, Measurement]] = {}
        for (encoder, measure), source in zip(measured, sources, strict=True):
            found = accuracies_of(measure) if encoder is run else {}
            here = mine.setdefault(source, {}) if found else {}
            if here.keys() & found.keys():
                left_out.append(f"{measure.folder}: another measurement of the same kind is shown of {titles[i]}")
            else:
                here |= found
        base = PretrainRecord(run, titles[i], differs[i], str(run.config.get("target")), predicts[i], owned[i])
        records += [replace(base, accuracies=mine[source], measured_on=source) for source in mine] or [base]
    return records, left_out


def _predicts(run: RunInfo, tokenizer: TokenizerRecord | None) -> str:
    """The target in words: that of tokens is their tokenizer."""
    target = str(run.config.get("target"))
    if run.config.get("epochs") == 0:
        return "nothing: untrained"
    if target != "tokens":
        return "normalised pixels" if target == "pixels" and run.config.get("normalize_pixels") else target
    return tokenizer.title if tokenizer else f"tokens of {Path(str(run.config.get('tokenizer'))).name}"


def as_float(value: Any) -> float | None:
    """A finite number, or None for anything else that a file may hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def scores_of(results: dict[str, Any]) -> dict[str, Measurement]:
    """The scores that say which of two tokenizers is better among the results of `score`, by the names of SCORES."""
    names = [name for name, score in SCORES.items() if score.higher_is_better is not None]
    found = {name: [as_float(results.get(name + end)) for end in ("", "_low", "_high")] for name in names}
    return {name: Measurement(value, *interval) for name, (value, *interval) in found.items() if value is not None}


def sources_of(measured: Sequence[RunInfo]) -> list[str | None]:
    """The images of each measurement, and whose labels it learned where those differ: what has both in common compares.

    None where a measurement does not say.
    """
    sources = [tuple((run.summary.get(key) or {}).get("spec") for key in ("test_data", "data")) for run in measured]
    differ = len(set(sources)) > len({test for test, _ in sources})
    words = [f"{test}, labels of {train}" if differ else test for test, train in sources]
    return [text if isinstance(test, str) else None for text, (test, _) in zip(words, sources, strict=True)]


def accuracies_of(run: RunInfo) -> dict[str, Measurement]:
    """Accuracies in percent by the keys of MEASURES; a model trained from scratch measures no pretraining."""
    if run.stage == "finetune":
        poolings = {} if run.config.get("from_scratch") else {"finetune": run.results}
    else:
        stage = "mae" if run.config.get("protocol") == "mae" else run.stage
        stage = f"{stage}-predictor" if run.config.get("features") == "predictor" else stage
        poolings = {f"{stage} {pooling}": result for pooling, result in run.results.items()}
        parts = [(key, result) for key, result in poolings.items() if isinstance(result, dict)]
        poolings |= {f"{key} whitened": result.get("whitened", {}) for key, result in parts}
    values = {}
    for key, result in poolings.items():
        if key in MEASURES and isinstance(result, dict) and (share := as_float(result.get("accuracy"))) is not None:
            interval = result.get("interval")
            ends = [as_float(end) for end in interval] if isinstance(interval, list) and len(interval) == 2 else []
            values[key] = Measurement(100 * share, *(None if end is None else 100 * end for end in ends))
    return values
