"""All scores on all data sets, the tables of docs/scores.md: `python -m studies.score_table` writes them there.

Scores and outcomes are those of the records. A score that is better when lower counts with its sign turned, so that +1
is the right order for all. Labels as tokens are among the tokenizers that are put in order, and are no choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from clustermim.files import write_atomic
from clustermim.scores import SCORES
from clustermim.studies.comparison import ORACLE
from clustermim.studies.correlation import correlate, kinds_of
from clustermim.studies.description import Study, read_study
from clustermim.studies.records import read_record
from clustermim.studies.table import Row, is_at, make_rows, selections
from studies.numbers import GENERATED_BLOCK

HERE = Path(__file__).parents[1]
PAGE = HERE / "docs" / "scores.md"
DATA = {  # in which the scores were developed, and which nobody had seen
    "cifar10-rivals": "CIFAR-10",
    "imagenette-rivals": "Imagenette",
    "unseen-aerial": "aerial scenes, unseen",
    "unseen-tiny-imagenet": "Tiny-ImageNet, unseen",
}
OUTCOMES = {"linear probe": "averaged patches", "linear probe, class token": "the class token"}


class Compared(NamedTuple):
    """A score against an outcome."""

    spearman: float
    text: str  # with its interval, and the regret


def tables(records: Path) -> str:
    """A table for each outcome: a line a score, a column a data set."""
    known = {name: path for name in DATA if (path := records / f"{name}.json").exists()}
    studies = {name: read_study(HERE / "studies" / f"{name}.yaml") for name in known}
    found = {name: read_record(path, studies[name]) for name, path in known.items()}
    parts = []
    for outcome, title in OUTCOMES.items():
        compared = {name: dict(compare(studies[name], found[name], outcome)) for name in known}
        head = ["Linear probe on " + title, "labels", *(DATA[name] for name in known)]
        lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
        for score in ordered(compared.values()):
            cells = [compared[name][score].text if score in compared[name] else "–" for name in known]
            needs = "needed" if SCORES[score].needs_labels else ""
            lines.append(f"| {' | '.join([f'`{score}`', needs, *cells])} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def ordered(compared: Iterable[dict[str, Compared]]) -> list[str]:
    """The scores by the mean of their correlations over data sets, best first."""
    values: dict[str, list[float]] = {}
    for found in compared:
        for score, one in found.items():
            values.setdefault(score, []).append(one.spearman)
    return sorted(values, key=lambda score: -fmean(values[score]))


def compare(study: Study, record: dict[str, Any], outcome: str) -> Iterator[tuple[str, Compared]]:
    """Each score with a direction that the rows of a study have."""
    rows = [row for row in make_rows(study, record) if row.estimate(outcome) is not None]
    scores, fits = zip(*(tokenizer(study, record, row) for row in rows), strict=True) if rows else ((), ())
    given = [mean(row, outcome) for row in rows]
    for name, score in SCORES.items():
        if score.higher_is_better is None:
            continue
        sign = 1 if score.higher_is_better else -1
        places = [place for place, values in enumerate(scores) if values.get(name) is not None]
        signed = {place: sign * scores[place][name] for place in places}
        kinds = kinds_of(study, [rows[place] for place in places])
        correlated = correlate(list(signed.values()), [given[place] for place in places], kinds)
        able = [place for place in places if fits[place] != ORACLE]
        if correlated is None or not able:
            continue
        choice = max(able, key=lambda place: signed[place])
        best = max(value for value, fit in zip(given, fits, strict=True) if fit not in (None, ORACLE))
        regret = best - given[choice]
        yield name, Compared(correlated.spearman.value, f"{correlated.spearman}; {regret:.1f}")


def tokenizer(study: Study, record: dict[str, Any], row: Row) -> tuple[dict[str, Any], str | None]:
    """The scores of what a row is pretrained with, and the stage that made it; nothing for what has no tokens."""
    stage, place = selections(study)[row.name]
    cells = [cell for cell in record["cells"] if cell["name"] == stage and is_at(cell["axes"], cell["options"], place)]
    keys = {key for cell in cells for key in (cell["key"], *cell["needs"])}
    scored = [cell for cell in record["cells"] if cell["stage"] == "score" and keys & set(cell["needs"])]
    if not scored:
        return {}, None
    (fit,) = [cell["stage"] for cell in record["cells"] if cell["key"] in scored[0]["needs"]][:1]
    return scored[0]["results"], fit


def mean(row: Row, outcome: str) -> float:
    """Over seeds."""
    estimate = row.estimate(outcome)
    assert estimate is not None  # as the caller has seen
    return estimate.mean


def page(text: str, records: Path) -> str:
    """The page with today's tables."""
    return GENERATED_BLOCK.sub(lambda found: f"{found[1]}\n{tables(records)}{found[3]}", text)


if __name__ == "__main__":
    write_atomic(PAGE, page(PAGE.read_text(encoding="utf-8"), HERE / "results").encode())
