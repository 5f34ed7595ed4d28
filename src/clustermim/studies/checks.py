"""A table that cannot be made is refused before the work: every mistake in its description gets one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clustermim.errors import ConfigError, did_you_mean
from clustermim.studies.cells import Cell
from clustermim.studies.correlation import check_correlations
from clustermim.studies.description import Study, check_keys
from clustermim.studies.table import columns, is_at, selections

TABLE_KEYS = ("rows", "columns", "differences", "correlations", "paper")
COLUMN_KEYS = {
    "stage": str,
    "value": str,
    "percent": bool,
    "decimals": int,
    "where": dict,
    "optional": bool,
    "hidden": bool,
}


def check_table(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse a table that names what is not there, or says it in another way than `table.py` tells."""
    table = check_keys(study.table, TABLE_KEYS, f"the table of {study.name}")
    for part in ("rows", "columns", "paper"):
        check_keys(table.get(part) or {}, None, f"{part} of the table of {study.name}")
    for name in table.get("rows") or {}:
        _check_row(study, name, cells)
    for name, spec in columns(study).items():
        _check_column(name, spec, cells)
    _check_differences(study)
    check_correlations(study)
    for row, printed in (table.get("paper") or {}).items():
        _check_known(row, selections(study), "paper", "a row")
        for column in check_keys(printed, None, f"the paper's numbers of {row!r}"):
            _check_known(column, columns(study), f"the paper's numbers of {row!r}", "a column")


def _check_row(study: Study, name: str, cells: Sequence[Cell]) -> None:
    selection = study.table["rows"][name]
    if not isinstance(selection, str) and not (
        isinstance(selection, dict) and len(selection) == 1 and isinstance(next(iter(selection.values())), dict)
    ):
        raise ConfigError(f"the table's row {name!r} is neither a stage nor one with its place, {{STAGE: {{k: 50}}}}")
    stage, place = selections(study)[name]
    names = [entry.name for entry in study.stages]
    if stage not in names:
        raise ConfigError(f"the table's row {name!r} names a stage {stage!r}{did_you_mean(str(stage), names)}")
    if not any(cell.name == stage and is_at(cell.axes, cell.options, place) for cell in cells):
        raise ConfigError(f"the table's row {name!r}: no cell of {stage} is at {place}")


def _check_column(name: str, spec: Any, cells: Sequence[Cell]) -> None:
    where = f"the table's column {name!r}"
    for key, value in check_keys(spec, tuple(COLUMN_KEYS), where).items():
        if not isinstance(value, COLUMN_KEYS[key]):
            raise ConfigError(f"{where}: {key} {value!r} is not of the kind {COLUMN_KEYS[key].__name__}")
    if "value" not in spec:
        raise ConfigError(f"{where} needs a value: where in the results it is")
    known = dict.fromkeys(word for cell in cells for word in (cell.name, cell.stage))
    if "stage" in spec:
        _check_known(spec["stage"], known, where, "a stage")


def _check_differences(study: Study) -> None:
    pairs = study.table.get("differences") or []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(
                f"the table's difference {pair!r} is not a pair of rows; a name with a comma needs quotes"
            )
        for name in pair:
            _check_known(name, selections(study), "the table's differences", "a row")


def _check_known(name: Any, known: Any, where: str, what: str) -> None:
    if name not in known:
        raise ConfigError(f"{where}: {name!r} is not {what}{did_you_mean(str(name), known)}")
