"""From run folders to plain records: tokenizers with their scores, pretrained encoders with their accuracies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from clustermim.mean_ci import MeanCI
from clustermim.reports.collect import ADVISE, RunInfo
from clustermim.reports.names import differences, make_titles, natural
from clustermim.scores import SCORES

LARGEST = 1e15  # of numbers that are believed
REFERENCES = ("random", "labels", "toy")  # kinds of tokenizers that know nothing, or the answer
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

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


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

    @property
    def role(self) -> str:
        """What it is there to compare with, if it is no choice."""
        return "reference" if self.kind in REFERENCES else ""


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

    @property
    def role(self) -> str:
        """What it is there to compare with, if it is no choice."""
        untrained = "untrained" if self.found.config.get("epochs") == 0 else ""
        return untrained or (self.tokenizer.role if self.tokenizer else "")


class NamedRun(NamedTuple):
    """Any run, and what the page calls it."""

    title: str
    run: RunInfo


@dataclass(frozen=True)
class Records:
    """All that the page shows of the runs."""

    tokenizers: list[TokenizerRecord]
    pretrained: list[PretrainRecord]
    left_out: list[str]  # accuracies for which there was no place
    runs: list[NamedRun] = field(default_factory=list)  # all of them, in the order of their making


def make_records(found: Sequence[RunInfo]) -> Records:
    """Tie scores to tokenizers and accuracies to encoders."""
    fits = [run for run in found if run.stage.startswith("fit ")]
    pretrained = [run for run in found if run.stage == "pretrain"]
    scored = [(owner(run, "tokenizer", fits), run) for run in found if run.stage == "score"]
    scored += [pair for run in found if run.stage == ADVISE for pair in _advised(run, fits)]
    measured = [run for run in found if run.stage in ("probe", "knn", "finetune")]
    tokenizers = _tokenizers(fits, scored)
    encoders, left_out = _pretrained(pretrained, tokenizers, [(owner(run, "run", pretrained), run) for run in measured])
    tokenizers.sort(key=lambda record: (record.found.data or "", natural(record.title)))
    encoders.sort(key=lambda record: natural(record.title))
    return Records(tokenizers, encoders, left_out, _named(found, [*tokenizers, *encoders]))


def _named(found: Sequence[RunInfo], records: Sequence[TokenizerRecord | PretrainRecord]) -> list[NamedRun]:
    """Tokenizers and encoders by their titles, each before what was measured of it."""
    made = {id(record.found): [NamedRun(record.title, record.found)] for record in records}
    others: list[NamedRun] = []
    for run in found:
        if id(run) not in made and run.stage != ADVISE:
            among = [record.found for record in records]
            of = owner(run, "run", among) or owner(run, "tokenizer", among)
            title = f"{run.stage} of {made[id(of)][0].title}" if of else run.folder.resolve().name
            (made[id(of)] if of else others).append(NamedRun(title, run))
    return [named for group in made.values() for named in group] + others


def _advised(advice: RunInfo, fits: Sequence[RunInfo]) -> list[tuple[RunInfo, RunInfo]]:
    """The tokenizers in a folder of `advise`, each with its score there as a run of `score` would have it."""
    pairs = []
    for fit in fits:
        entry = advice.results["scores"].get(fit.folder.resolve().name)
        if entry is None or fit.folder.resolve().parent != advice.folder.resolve():
            continue
        parts = [part for part in map(as_float, entry.get("parts") or []) if part is not None]
        low, high = (MeanCI.of(parts).interval() if parts else None) or (None, None)
        results = {name: value for name, value in entry.items() if name in SCORES}
        results |= {f"{name}{end}": value for name in results for end, value in (("_low", low), ("_high", high))}
        data = {"spec": f"the images of advise, in {advice.folder.name}"}
        pairs.append((fit, RunInfo(advice.folder, "score", {}, {"results": results, "data": data})))
    return pairs


def unique(records: Sequence[PretrainRecord]) -> list[PretrainRecord]:
    """Every run once, on however many sources it was measured."""
    return list({id(record.found): record for record in reversed(records)}.values())[::-1]


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


def _tokenizers(fits: Sequence[RunInfo], scored: Sequence[tuple[RunInfo | None, RunInfo]]) -> list[TokenizerRecord]:
    kinds = [run.stage.removeprefix("fit ") for run in fits]
    sizes = [int(as_float(run.results.get("vocab_size")) or 0) for run in fits]
    differs = [""] * len(fits)
    for group in dict.fromkeys((run.stage, run.data) for run in fits):
        places = [i for i, run in enumerate(fits) if (run.stage, run.data) == group]
        for i, words in zip(places, differences([fits[i].config | {"data": None} for i in places]), strict=True):
            differs[i] = words
    titles = make_titles(fits, [f"{kind} {size}" for kind, size in zip(kinds, sizes, strict=True)], differs)

    def rank(run: RunInfo) -> tuple[bool, float]:
        """Of several scores the plain variant comes first, then the most images."""
        return str(run.results.get("variant")).startswith("plain"), as_float(run.results.get("images")) or 0

    records = []
    for i, run in enumerate(fits):
        record = TokenizerRecord(run, titles[i], differs[i], kinds[i], sizes[i])
        best = max((score for fit, score in scored if fit is run), key=rank, default=None)
        if best is not None:
            used = as_float(best.results.get("used"))
            number = None if used is None else int(used)
            record = replace(record, scores=scores_of(best.results), used=number, scored_on=best.data)
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
    titles = make_titles(runs, predicts, differs)
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
    if target == "multi-tokens" and isinstance(names := run.config.get("tokenizers"), list):
        return f"tokens of {' and '.join(Path(str(name)).name for name in names)}"
    if target != "tokens":
        return "normalised pixels" if target == "pixels" and run.config.get("normalize_pixels") else target
    return tokenizer.title if tokenizer else f"tokens of {Path(str(run.config.get('tokenizer'))).name}"


def as_float(value: Any) -> float | None:
    """A number of a usual size, or None for anything else that a file may hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
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
