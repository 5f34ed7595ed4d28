"""What the page says first: which target to take, by what, and from which others it is not told apart."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clustermim.reports.numbers import fixed
from clustermim.reports.provenance import command, is_safe
from clustermim.reports.ranking import NO_RECIPE, Entry, Ranking, rank_encoders, rank_tokenizers
from clustermim.reports.records import MEASURES, Measurement, PretrainRecord, Records

# What belongs to a target: encoders that differ in other options too are compared as recipes.
OF_TARGET = {"target", "teacher", "normalize_pixels", "pixel_loss", "vector_loss", "label_smoothing"}
OF_MODEL = ("model", "patch_size", "layout", "positions")  # in which an untrained encoder must be equal
MOST_NAMED = 4  # of those that are not told apart


@dataclass(frozen=True)
class Answer:
    """The recommendation in words, what it rests on, and the command that could come next."""

    heading: str
    facts: list[str]
    command: str | None = None
    about_command: str = ""
    ranking: Ranking | None = None
    measure: str = ""  # what it is ranked by
    unit: str = ""
    digits: int = 3

    def text(self) -> str:
        """The heading with the first fact, for the command line."""
        return f"{self.heading}. {self.facts[0]}"


def make_answer(records: Records, trust_runs: bool = False) -> Answer:
    """By the accuracies of encoders; before there are any by a score of tokenizers; otherwise what to run."""
    encoders, tokenizers = rank_encoders(records.pretrained), rank_tokenizers(records.tokenizers)
    if encoders is not None:
        answer = _measured(encoders, tokenizers, trust_runs)
        left = sum(not record.role and not record.accuracies for record in records.pretrained)
        said = f"Encoders that were not measured: {left}. Probe them on the same images too."
        return replace(answer, facts=[*answer.facts, said]) if left else answer
    if tokenizers is not None:
        return _scored(tokenizers)
    return _unknown(records)


def _measured(ranking: Ranking, scored: Ranking | None, trust_runs: bool) -> Answer:
    best, *others = ranking.choices
    measure, number = MEASURES[ranking.by], len(ranking.choices)
    control = _control(best, ranking)
    gain = None if control is None else best.minus(control)
    facts = [_claim(best, number, measure, ranking.on), *_apart(others, " %", 1, "test images")]
    heading = f"Predict {target_words(best.encoders[0])}"
    if control is not None and gain is not None:
        gained = f"{fixed(gain.value, 1)} points{_interval(gain, 1)}"
        said = f"An untrained encoder of its size has {fixed(control.value.value, 1)} %: pretraining is worth {gained}."
        if gain.low is not None and gain.low <= 0:
            heading = "No target is better yet than no training"
            facts[0] = f"The best is {best.title}. {facts[0]}"
            said += " That may be chance: train for longer, or on more images, before you choose."
        facts.append(said)
    facts += _of_no_target(ranking)
    if others and min(len(entry.values) for entry in ranking.choices) == 1:
        facts.append("Intervals are over test images; another seed moves an encoder too, and not all have several.")
    facts += _recipe_note(ranking.choices)
    facts += _foretold(best, scored)
    made_by = command(best.encoders[0].found, trust_runs)
    return Answer(heading, facts, made_by, "The command that made its encoder", ranking, measure, " %", 1)


def _scored(ranking: Ranking) -> Answer:
    best, *others = ranking.choices
    number = len(ranking.choices)
    where = _where(ranking.on)
    value = f"{fixed(best.value.value, 3)}{_interval(best.value, 3)}"
    known = "the score that best predicted what training gives"
    known += "" if ranking.by == "transferability" else ", of those that need no labels"
    facts = [f"Of {number} tokenizers it has the highest {ranking.by}, {value}{where}." if others else
             f"It is the only tokenizer that was scored: {ranking.by} {value}{where}."]  # fmt: skip
    facts += _apart(others, "", 3, "images")
    facts.append(f"It is chosen by {ranking.by}, {known} in our studies. No encoder was measured yet.")
    assert best.tokenizer is not None
    found = best.tokenizer.found
    words = ["clustermim", "pretrain", "--data", found.data or "IMAGES", "--tokenizer", str(found.folder)]
    next_command = _safe([*words, "--out", "RUN"])
    heading = f"Predict the tokens of {best.title}"
    return Answer(heading, facts, next_command, "Pretrain with it", ranking, ranking.by)


def _unknown(records: Records) -> Answer:
    """Nothing was compared: what to run."""
    heading = "Which target to take is not known yet"
    encoders = [record for record in records.pretrained if not record.role]
    tokenizers = [record for record in records.tokenizers if not record.role]
    runs = [r.found for r in encoders] + [r.found for r in tokenizers] + [named.run for named in records.runs]
    data = next((run.data for run in runs if run.data), "IMAGES")
    if encoders:
        fact = "The encoders were not measured: probe each of them, on labelled images."
        words = ["probe", str(encoders[0].found.folder), "--data", data, "--test-data", "TEST-IMAGES"]
    elif tokenizers:
        fact = "The tokenizers were not scored: score each of them, on the same images."
        words = ["score", str(tokenizers[0].found.folder), "--data", data]
    else:
        fact = "There is only what others are compared with: let advise fit and score some tokenizers."
        words = ["advise", "--data", data, "--out", "advice"]
    return Answer(heading, [fact], _safe(["clustermim", *words]), "Run")


def _safe(words: Sequence[str]) -> str | None:
    """Words as a command, unless one may do something else when it is pasted."""
    return shlex.join(words) if is_safe(words) else None


def target_words(record: PretrainRecord) -> str:
    """What an encoder predicts, after the word "predict"."""
    if record.target == "tokens":
        return record.predicts if record.tokenizer is None else f"the tokens of {record.predicts}"
    if record.target == "features":
        return f"the features of {record.found.config.get('teacher')}"
    return "HOG features" if record.target == "hog" else record.predicts


def _claim(best: Entry, number: int, measure: str, on: str | None) -> str:
    """How good it is, with its interval."""
    value = f"{fixed(best.value.value, 1)} %{_interval(best.value, 1)}"
    where, seeds = _where(on), len(best.values)
    whose = f"Its {seeds} encoders, a seed each, have" if seeds > 1 else "Its encoder has"
    mean = "mean " if seeds > 1 else ""
    if number == 1:
        return f"It is the only target that was measured: {mean}{measure} {value}{where}."
    return f"{whose} the highest {mean}{measure} of {number} targets, {value}{where}."


def _where(on: str | None) -> str:
    """On which images, without their options, which the tables have."""
    return f", on {on.partition('?')[0]}" if on else ""


def _interval(value: Measurement, digits: int) -> str:
    return f" (95 % interval {' … '.join(fixed(end, digits) for end in value.ends)})" if value.ends else ""


def _apart(others: Sequence[Entry], unit: str, digits: int, images: str) -> list[str]:
    """Which others are not told from the best, or how far the next one is behind it."""
    level = [f"{entry.title} ({fixed(entry.value.value, digits)}{unit})" for entry in others if entry.is_level]
    if level:
        more = f" and {len(level) - MOST_NAMED} more" if len(level) > MOST_NAMED else ""
        return [f"These {images} do not tell it from {', '.join(level[:MOST_NAMED])}{more}: take the cheapest of them."]
    if not others:
        return []
    gap = others[0].behind
    assert gap is not None
    points = " points" if unit else ""
    return [f"It is told from all others: the next, {others[0].title}, is {fixed(gap.value, digits)}{points} behind"
            f"{_interval(gap, digits)}."]  # fmt: skip


def _control(best: Entry, ranking: Ranking) -> Entry | None:
    """The untrained encoder of the same size."""
    model = [repr(best.encoders[0].found.config.get(name)) for name in OF_MODEL]
    for entry in ranking.entries:
        if entry.role == "untrained" and [repr(entry.encoders[0].found.config.get(n)) for n in OF_MODEL] == model:
            return entry
    return None


def _of_no_target(ranking: Ranking) -> list[str]:
    """Whether one that predicts random tokens is as good."""
    for entry in ranking.entries:
        if entry.tokenizer is not None and entry.tokenizer.kind == "random" and entry.is_level:
            value = f"{entry.title} ({fixed(entry.value.value, 1)} %)"
            return [f"Nor do they tell it from {value}, whose tokens say nothing: here the target may not matter."]
    return []


def _recipe_note(entries: Sequence[Entry]) -> list[str]:
    """In what the encoders differ besides their targets."""
    configs = [entry.encoders[0].found.config for entry in entries]
    names = dict.fromkeys(name for config in configs for name in config if name not in NO_RECIPE | OF_TARGET)
    differing = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
    if not differing:
        return []
    named = ", ".join(map(str, differing[:MOST_NAMED]))
    return [f"The encoders differ in {named} too: part of the difference may come from that."]


def _foretold(best: Entry, scored: Ranking | None) -> list[str]:
    """What a score had said before."""
    if scored is None or len(scored.choices) < 2:
        return []
    first = scored.choices[0]
    value = f"{fixed(first.value.value, 3)}{_interval(first.value, 3)}"
    if best.tokenizer is not None and first.tokenizer is best.tokenizer:
        return [f"{scored.by} had chosen it before any training: {value}."]
    return [f"Before any training {scored.by} had chosen {first.title}: {value}."]
