"""The record of a study: the results of its cells with their provenance in one JSON file, which is committed.

Records also stand for runs that are elsewhere or gone: a cell that one of them holds is not run again for its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clustermim.errors import RunError
from clustermim.reading import Whole, check_shape
from clustermim.runs import SUMMARY_SHAPE, read_mapping, read_summary
from clustermim.studies.cells import Cell
from clustermim.studies.description import Study

FORMAT = 1

CELL = Whole({"name": str, "stage": str, "axes": {str: object}, "key": str, "needs": [str], "options": {str: object}})
CELL |= {"results": {str: object}, str: object}
SHAPE = Whole({"study": str, "cells": [CELL], str: object})

PLACE = {"name", "stage", "axes", "key", "needs", "options"}  # where a cell stands in its study

Recorded = dict[str, dict[str, Any]]  # summaries of cells, by their keys


def make_record(study: Study, cells: Sequence[Cell], out: Path, kept: Recorded) -> dict[str, Any]:
    """All complete cells with their results and provenance, from their folders or as records keep them."""
    summaries = kept | {cell.key: read_summary(cell.folder(out)) for cell in cells if cell.is_done(out)}
    entries = [
        {
            "name": cell.name,
            "stage": cell.stage,
            "axes": cell.axes,
            "key": cell.key,
            "needs": [other.key for other in cell.needs()],
            "options": cell.options,
            **{name: value for name, value in summaries[cell.key].items() if name != "stage"},
        }
        for cell in cells
        if cell.key in summaries
    ]
    return {"format": FORMAT, "study": study.name, "title": study.title, "cells": entries}


def read_record(path: Path, study: Study) -> dict[str, Any]:
    """What `make_record` made of this study and somebody kept."""
    record = _read(path)
    if record.get("study") != study.name:
        raise RunError(f"{path} does not hold results of the study {study.name}")
    return record


def read_recorded(folder: str | Path | None) -> Recorded:
    """What the records of a folder hold; of a cell that several hold, the most results, as a later version has them."""
    if folder is None:
        return {}
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise RunError(f"{folder} holds no results")
    kept: Recorded = {}
    for path in paths:
        for entry in _read(path)["cells"]:
            key = entry["key"]
            if key not in kept or len(entry["results"]) > len(kept[key]["results"]):
                kept[key] = {name: value for name, value in entry.items() if name not in PLACE}
    return kept


def _read(path: Path) -> dict[str, Any]:
    record = read_mapping(path, f"there are no results {path}")
    if record.get("format") != FORMAT:
        raise RunError(f"{path} does not hold results of a study")
    check_shape(record, SHAPE, str(path), RunError)
    for cell in record["cells"]:
        check_shape(cell, SUMMARY_SHAPE, f"{path}, {cell['name']}", RunError)
        check_shape(cell["axes"], {"seed": (int, float, str, bool), str: object}, f"{path}, {cell['name']}", RunError)
    return record
