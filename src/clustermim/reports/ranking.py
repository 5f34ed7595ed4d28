"""Targets in the order of what was measured of their encoders, and tokenizers in that of a score, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from clustermim.mean_ci import MeanCI, newcombe
from clustermim.reports.names import differences, natural
from clustermim.reports.records import MEASURES, Measurement, PretrainRecord, Records, TokenizerRecord
from clustermim.scores import SCORES

# The scores that ordered tokenizers as training did, the best first (docs/scores.md), and then all others.
PREDICTING = ("transferability", "view_retrieval", "bag_accuracy")
ORDER = (*PREDICTING, *(name for name in SCORES if name not in PREDICTING))
NO_RECIPE = {"stage", "seed", "device", "precision", "compile", "watch", "watch_every", "tokenizer", "weights"}


@dataclass(frozen=True)
class Entry:
    """One of those that are compared: the encoders of one recipe, a seed each, or a tokenizer."""

    title: str
    values: tuple[Measurement, ...]  # one a seed
    encoders: tuple[PretrainRecord, ...] = ()
    tokenizer: TokenizerRecord | None = None
    role: str = ""  # what it is there to compare with, if it is no choice
    behind: Measurement | None = None  # by how much it is behind the best, which has none

    @property
    def value(self) -> Measurement:
        """The measurement of one seed as it is; of several the mean, with Student's interval."""
        if len(self.values) == 1:
            return self.values[0]
        found = MeanCI.of([one.value for one in self.values])
        return Measurement(found.mean, *(found.interval() or (None, None)))

    @property
    def is_level(self) -> bool:
        """Whether it is not told from the best."""
        return self.behind is not None and (self.behind.low is None or self.behind.low <= 0)

    def minus(self, other: Entry) -> Measurement:
        """The difference to another: between seeds with Welch's interval; of a single one with Newcombe's."""
        if len(self.values) > 1 and len(other.values) > 1:
            ours, theirs = (MeanCI.of([one.value for one in entry.values]) for entry in (self, other))
            found = ours.minus(theirs)
            return Measurement(found.mean, *(found.interval or (None, None)))
        first, second = _mean(self.values), _mean(other.values)
        gap = first.value - second.value
        if first.ends is None or second.ends is None:
            return Measurement(gap)
        return Measurement(gap, *newcombe(first.value, first.ends, second.value, second.ends))


@dataclass(frozen=True)
class Ranking:
    """Some that were compared by one number on one source: choices first, then what they are compared with."""

    by: str  # a key of MEASURES, or a name of SCORES
    on: str | None
    entries: list[Entry]

    @property
    def choices(self) -> list[Entry]:
        """Those that may be taken, best first."""
        return [entry for entry in self.entries if not entry.role]


def rank_encoders(records: Sequence[PretrainRecord]) -> Ranking | None:
    """By the first of MEASURES that some choice has, on the images where most have it; None if none was measured."""
    for key in MEASURES:
        measured = [record for record in records if key in record.accuracies]
        choices = [record.measured_on for record in measured if not record.role]
        if choices:
            on = max(dict.fromkeys(choices), key=choices.count)
            return Ranking(key, on, _from_best(_recipes([r for r in measured if r.measured_on == on], key)))
    return None


def rank_tokenizers(records: Sequence[TokenizerRecord]) -> Ranking | None:
    """By transferability, or without labels by view_retrieval, on the images where most have it."""
    for name in PREDICTING[:2]:
        scored = [record for record in records if name in record.scores]
        choices = [record.scored_on for record in scored if not record.role]
        if choices:
            on = max(dict.fromkeys(choices), key=choices.count)
            entries = [Entry(r.title, (r.scores[name],), (), r, r.role) for r in scored if r.scored_on == on]
            return Ranking(name, on, _from_best(entries))
    return None


def _recipes(records: Sequence[PretrainRecord], key: str) -> list[Entry]:
    """An entry for each recipe, whatever the seeds; of runs that are equal in everything the first counts."""
    groups: dict[str, dict[str, PretrainRecord]] = {}
    for record in records:
        config, of = record.found.config, record.tokenizer.found.config if record.tokenizer else {}
        options = sorted((str(name), repr(value)) for name, value in config.items() if name not in NO_RECIPE)
        tokens = sorted((str(name), repr(value)) for name, value in of.items() if name != "seed")
        recipe = repr((options, tokens or config.get("tokenizer")))
        groups.setdefault(recipe, {}).setdefault(repr((config.get("seed"), of.get("seed"))), record)
    members = [tuple(group.values()) for group in groups.values()]
    configs = [{k: v for k, v in group[0].found.config.items() if k not in NO_RECIPE} for group in members]
    entries = []
    for group, words in zip(members, differences(configs), strict=True):
        common = f"{group[0].predicts}, {words}" if words else group[0].predicts
        title = group[0].title if len(group) == 1 else common
        values = tuple(record.accuracies[key] for record in group)
        entries.append(Entry(title, values, group, group[0].tokenizer, group[0].role))
    return entries


def _mean(values: Sequence[Measurement]) -> Measurement:
    """The mean of some measurements and of the ends of their own intervals, where all have one."""
    ends = [one.ends for one in values if one.ends is not None]
    mean = [fmean(some) for some in zip(*ends, strict=True)] if len(ends) == len(values) else []
    return Measurement(fmean(one.value for one in values), *mean)


def _from_best(entries: Sequence[Entry]) -> list[Entry]:
    """Choices first, the best of them at the top, each with its distance to that."""
    best, *others = sorted(entries, key=lambda one: (bool(one.role), -one.value.value, natural(one.title)))
    return [best, *(replace(one, behind=best.minus(one)) for one in others)]


def best_first(records: Records, ranking: Ranking | None) -> Records:
    """Encoders and tokenizers best first, then what could not be compared, and last what they are compared with."""
    by, on = (ranking.by, ranking.on) if ranking else ("", None)
    score = next((name for name in ORDER if any(name in record.scores for record in records.tokenizers)), "")
    sign = 1 if score and SCORES[score].higher_is_better else -1

    def place(role: str, compared: bool, value: Measurement | None, title: str) -> tuple[Any, ...]:
        return bool(role), not compared, value is None, -value.value if value else 0.0, natural(title)

    def of_encoder(record: PretrainRecord) -> tuple[Any, ...]:
        return place(record.role, record.measured_on == on, record.accuracies.get(by), record.title)

    def of_tokenizer(record: TokenizerRecord) -> tuple[Any, ...]:
        value = record.scores.get(score)
        return place(record.role, True, value and Measurement(sign * value.value), record.title)

    pretrained, tokenizers = sorted(records.pretrained, key=of_encoder), sorted(records.tokenizers, key=of_tokenizer)
    return replace(records, pretrained=pretrained, tokenizers=tokenizers)
