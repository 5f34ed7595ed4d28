"""What was predicted before training against what training gave: prediction records, read and compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from clustermim.errors import RunError
from clustermim.results import Table
from clustermim.runs import read_mapping, to_json
from clustermim.studies.cells import Cell
from clustermim.studies.correlation import correlate, families, kinds_of
from clustermim.studies.description import Study
from clustermim.studies.records import FORMAT
from clustermim.studies.table import Row, is_at, outcome_columns, selections

ORACLE = "fit labels"  # no tokenizer to choose: it is the answer


def prediction_path(records: str | Path, name: str) -> Path:
    """Where the prediction of a study is, beside its record."""
    return Path(records) / "predictions" / f"{name}.json"


def read_prediction(records: str | Path, study: Study, cells: Iterable[Cell]) -> dict[str, Any] | None:
    """What was predicted of these cells; None where nothing was."""
    path = prediction_path(records, study.name)
    if not path.exists():
        return None
    record, now = read_checked(path), list(cells)
    if not record["cells"].keys() & {cell.key for cell in now}:
        return None
    same = record["fingerprint"] == fingerprint(study, now, [entry["key"] for entry in record["tokenizers"]])
    return record | {"note": "" if same else " The study was changed after the prediction."}


def read_checked(path: Path) -> dict[str, Any]:
    """A prediction record, whose hash is right."""
    record = read_mapping(path, f"there is no prediction {path}")
    if record.get("format") != FORMAT or "orders" not in record:
        raise RunError(f"{path} does not hold a prediction of a study")
    if record.get("sha256") != content_hash(record):
        raise RunError(
            f"{path} was changed: its content has another sha256 than it says; take it from its first commit"
        )
    return record


def content_hash(record: dict[str, Any]) -> str:
    """The sha256 of a prediction record, its own aside."""
    content = to_json({name: value for name, value in record.items() if name != "sha256"})
    return hash_of(json.loads(content))


def hash_of(value: Any) -> str:
    """The sha256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint(study: Study, cells: Sequence[Cell], tokenizers: Iterable[str]) -> str:
    """A hash of what a prediction is about: tokenizers, the cells that come of them, and the outcome columns."""
    return hash_of([sorted(tokenizers), sorted(to_come(cells, tokenizers)), outcome_columns(study)])


def to_come(cells: Sequence[Cell], tokenizers: Iterable[str]) -> dict[str, str]:
    """The trainings with tokenizers of these keys, and the measurements of what they give: titles by key."""
    known = set(tokenizers)
    return {
        cell.key: cell.title()
        for cell in cells
        if not is_cheap(cell) and known & {other.key for other in cell.ancestors()}
    }


def is_cheap(cell: Cell) -> bool:
    """Whether a prediction may run it: a fit of a tokenizer, or its score."""
    return cell.stage == "score" or cell.stage.startswith("fit ")


def comparison_tables(
    study: Study, record: dict[str, Any], rows: Sequence[Row], prediction: dict[str, Any]
) -> Iterator[Table]:
    """Of each score, over all rows and within each family: Spearman with each outcome, and regret of its choice."""
    outcomes, made_of = outcome_columns(study), _tokenizers(study, record, prediction)
    names = [name for outcome in outcomes for name in (f"Spearman, {outcome}", "regret")]
    known = {row.name for row in rows if made_of[row.name]}
    for family, members in families(study, [row for row in rows if row.name in known]).items():
        lines = []
        for score, predicted in prediction["orders"].items():
            scores = {row.name: _mean(entry["scores"].get(score) for entry in made_of[row.name]) for row in members}
            sign = 1 if predicted["higher_is_better"] else -1
            signed = {name: sign * value for name, value in scores.items() if value is not None}
            able = [row for row in members if any(entry["stage"] != ORACLE for entry in made_of[row.name])]
            numbers = [text for outcome in outcomes for text in _compared(study, signed, members, able, outcome)]
            lines.append([score, str(len(signed)), _choice(signed, able) or "", *numbers])
        if lines and members:
            yield Table(
                f"Predicted before training, {family}", ("", "rows", "choice", *names), lines, _caption(prediction)
            )


def _compared(
    study: Study, signed: dict[str, float], members: Sequence[Row], able: Sequence[Row], outcome: str
) -> tuple[str, str]:
    """Spearman of a score with an outcome, and the points that its choice lies below the best; empty if not known."""
    given = {row.name: value.mean for row in members if (value := row.estimate(outcome)) is not None}
    both = [row for row in members if row.name in signed and row.name in given]
    known = [signed[row.name] for row in both], [given[row.name] for row in both]
    correlated = correlate(*known, kinds_of(study, both))
    spearman, choice = str(correlated.spearman) if correlated else "", _choice(signed, able)
    if choice is None or choice not in given:
        return spearman, ""
    best = max(given[row.name] for row in able if row.name in given)
    points = (best - given[choice]) * (1 if outcome_columns(study)[outcome].get("percent") else 100)
    return spearman, f"{points:.2f}"


def _choice(signed: dict[str, float], able: Sequence[Row]) -> str | None:
    """The row with the best score."""
    return max((row.name for row in able if row.name in signed), key=lambda name: signed[name], default=None)


def _caption(prediction: dict[str, Any]) -> str:
    """What the numbers are, and where they come from."""
    return (
        f"Predicted at {prediction['date']}, sha256 {prediction['sha256'][:12]}. Spearman: +1 is the predicted order. "
        f"Regret: points of the choice below the best; labels as tokens are no choice.{prediction.get('note', '')}"
    )


def _tokenizers(study: Study, record: dict[str, Any], prediction: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The predicted tokenizers of each row: its cells, or what they are pretrained with."""
    by_key = {entry["key"]: entry for entry in prediction["tokenizers"]}
    found: dict[str, list[dict[str, Any]]] = {}
    for name, (stage, place) in selections(study).items():
        keys: dict[str, None] = {}
        for cell in record["cells"]:
            with_tokens = cell["options"].get("target", "tokens") == "tokens"
            if cell["name"] == stage and is_at(cell["axes"], cell["options"], place) and with_tokens:
                keys |= dict.fromkeys([cell["key"], *cell["needs"]])
        found[name] = [by_key[key] for key in keys if key in by_key]
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
