"""Bring the committed records to the names and keys of this version: `python -m studies.migrate [REVISION]`.

Results get the names of today. Options, keys and references are those that the study of the same name gives its cells
now; a cell is found again by its name and its place on the axes. With a git revision the records are read from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from clustermim.studies.cells import Cell, expand
from clustermim.studies.description import read_study

HERE = Path(__file__).parents[1]
RENAMED = {
    "promise": "transferability",
    "promise_low": "transferability_low",
    "promise_high": "transferability_high",
    "outlook": "view_retrieval",
    "outlook_low": "view_retrieval_low",
    "outlook_high": "view_retrieval_high",
    "bag": "bag_accuracy",
    "recognised": "half_retrieval",
    "kinship": "patch_mi",
    "relit": "patch_mi_jittered",
    "reading": "variant",
    "readings": "variants",
}


def migrate(record: dict[str, Any], cells: list[Cell]) -> dict[str, Any]:
    """The record with the names, options and keys that the study's cells have now."""
    places = {(cell.name, json.dumps(cell.axes, sort_keys=True)): cell for cell in cells}
    return {**record, "cells": [_entry(entry, places) for entry in record["cells"]]}


def _entry(entry: dict[str, Any], places: dict[tuple[str, str], Cell]) -> dict[str, Any]:
    cell = places[entry["name"], json.dumps(entry["axes"], sort_keys=True)]
    now = {
        "stage": cell.stage,
        "key": cell.key,
        "needs": [other.key for other in cell.needs()],
        "options": cell.options,
        "results": {RENAMED.get(name, name): value for name, value in entry["results"].items()},
    }
    return {name: now.get(name, value) for name, value in entry.items()}


def main(revision: str | None = None) -> None:
    for path in sorted((HERE / "results").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        if revision is not None:
            command = ["git", "-C", str(HERE), "show", f"{revision}:results/{path.name}"]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        study = read_study(HERE / "studies" / f"{path.stem}.yaml")
        record = migrate(json.loads(text), expand(study)) | {"title": study.title}
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(record['cells'])} cells")


if __name__ == "__main__":
    main(*sys.argv[1:])
