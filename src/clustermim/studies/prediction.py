"""What a study predicts before it trains: `study --predict` scores its tokenizers and keeps their order, hashed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clustermim.distributed import rank
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.progress import log_info
from clustermim.provenance import git_commit, versions
from clustermim.results import Result, Table
from clustermim.runs import read_summary, to_json
from clustermim.studies.cells import Cell
from clustermim.studies.comparison import ORACLE, content_hash, fingerprint, is_cheap, prediction_path, to_come
from clustermim.studies.description import Study
from clustermim.studies.records import FORMAT, read_recorded
from clustermim.studies.running import checked_cells, run_cells
from clustermim.studies.table import outcome_columns


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """A prediction record: scores of tokenizers, the order that each score predicts, and what it is about."""

    record: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The record as it is kept."""
        return self.record

    def table(self) -> Table:
        """The choice of each score, and its order."""
        orders = self.record["orders"].items()
        rows = [[name, found["choice"] or "", " > ".join(found["order"])] for name, found in orders]
        caption = f"{len(self.record['cells'])} cells are to come; sha256 {self.record['sha256']}"
        return Table(f"{self.record['study']}: predicted", ("score", "choice", "order, best first"), rows, caption)


def predict_study(study: Study, out: Path, records: str | Path = "results") -> Prediction:
    """Fit and score the tokenizers of a study, train nothing, and keep what the scores predict."""
    place, cells = prediction_path(records, study.name), checked_cells(study)
    scores = [cell for cell in cells if cell.stage == "score" and cell.needs()]
    left_out = {cell.key: other.title() for cell in scores for other in _unfinished(cell, out) if not is_cheap(other)}
    chosen = [cell for cell in scores if cell.key not in left_out]
    if not chosen:
        raise ConfigError(
            f"the study {study.name} has no score of a tokenizer that can be fitted now: add a stage score"
        )
    _check_first(place, cells, chosen, out, records)
    for cell in scores:
        if cell.key in left_out:
            log_info(f"{cell.title()} is left out: it needs {left_out[cell.key]}; run that before, with --only")
    needed = {cell.key for last in chosen for cell in (*_unfinished(last, out), last, *last.needs())}
    run_cells([cell for cell in cells if cell.key in needed], out)
    _check_first(place, cells, chosen, out, records)  # others may have trained meanwhile
    left = [cell.title() for cell in scores if cell.key in left_out]
    record = make_prediction(study, cells, chosen, out) | {"left_out": left}
    record |= {"sha256": content_hash(record)}
    if rank() == 0:
        write_atomic(place, (to_json(record, indent=1) + "\n").encode())
    log_info(f"wrote {place}: commit it before anything is trained; `python -m studies.preregistered` checks that")
    return Prediction(record)


def make_prediction(study: Study, cells: Sequence[Cell], scores: Sequence[Cell], out: Path) -> dict[str, Any]:
    """The record of these score cells, which are complete, without its hash."""
    from clustermim.scores import SCORES  # slow to import

    made = {_scorer(cell): True for cell in scores}
    tokenizers: dict[str, dict[str, Any]] = {}
    for cell in scores:
        (fit,), found = cell.needs(), read_summary(cell.folder(out))["results"]
        prefix = f"{_scorer(cell)}: " if len(made) > 1 else ""
        values = {f"{prefix}{name}": found[name] for name in SCORES if name in found}
        entry = {"name": fit.title(), "key": fit.key, "stage": fit.stage, "scores": {}}
        tokenizers.setdefault(fit.key, entry)["scores"] |= values
    orders = {}
    for name in dict.fromkeys(name for entry in tokenizers.values() for name in entry["scores"]):
        higher = SCORES[name.rpartition(": ")[2]].higher_is_better
        if higher is not None:
            orders[name] = {"higher_is_better": higher, **_ordered(list(tokenizers.values()), name, higher)}
    return {
        "format": FORMAT,
        "study": study.name,
        "title": study.title,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git_commit": git_commit(),
        "fingerprint": fingerprint(study, cells, tokenizers),
        "cells": to_come(cells, tokenizers),
        "outcomes": outcome_columns(study),
        "tokenizers": list(tokenizers.values()),
        "orders": orders,
    }


def _ordered(tokenizers: Sequence[dict[str, Any]], score: str, higher: bool) -> dict[str, Any]:
    """Names of the tokenizers that have a score, best first, and the first that is no oracle."""
    scored = [entry for entry in tokenizers if entry["scores"].get(score) is not None]
    ordered = sorted(scored, key=lambda entry: -entry["scores"][score] if higher else entry["scores"][score])
    choice = next((entry["name"] for entry in ordered if entry["stage"] != ORACLE), None)
    return {"order": [entry["name"] for entry in ordered], "choice": choice}


def _unfinished(cell: Cell, out: Path) -> Iterator[Cell]:
    """What is still to be run for a cell, itself included."""
    if not cell.is_done(out):
        for other in cell.needs():
            yield from _unfinished(other, out)
        yield cell


def _scorer(cell: Cell) -> str:
    """The name of a score cell with its place, that of its tokenizer aside."""
    (fit,) = cell.needs()
    own = [f"{axis} {value}" for axis, value in cell.axes.items() if axis != "tokenizer" and axis not in fit.axes]
    return f"{cell.name} ({', '.join(own)})" if own else cell.name


def _check_first(place: Path, cells: Sequence[Cell], scores: Sequence[Cell], out: Path, records: str | Path) -> None:
    """Refuse a prediction that comes too late, or a second one."""
    if place.exists():
        raise RunError(f"{place} holds a prediction of this study already: the first one counts")
    kept = read_recorded(records) if any(Path(records).glob("*.json")) else {}
    for key, title in to_come(cells, [fit.key for cell in scores for fit in cell.needs()]).items():
        begun = next(out.glob(f"*-{key}"), None)
        if begun or key in kept:
            where = f"begun in {begun}" if begun else f"in the records of {records}"
            raise RunError(f"too late to predict: {title} is already {where}; a prediction comes before any training")
