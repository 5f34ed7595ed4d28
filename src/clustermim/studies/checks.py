"""A table that cannot be made is refused before the work: every mistake in its description gets one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clustermim.errors import ConfigError, did_you_mean
from clustermim.studies.cells import Cell
from clustermim.studies.correlation import correlations
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
    for name, selection in (table.get("rows") or {}).items():
        _check_row(study, name, selection, cells)
    stages = [word for cell in cells for word in (cell.name, cell.stage)]
    for name, spec in columns(study).items():
        _check_column(f"the table's column {name!r}", spec, stages)
    pairs = table.get("differences") or []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(
                f"the table's difference {pair!r} is not a pair of rows; a name with a comma needs quotes"
            )
        _check_known(pair, selections(study), "the table's differences", "a row")
    check_correlations(study)
    _check_known(table.get("paper") or {}, selections(study), "paper", "a row")
    for row, printed in (table.get("paper") or {}).items():
        where = f"the paper's numbers of {row!r}"
        _check_known(check_keys(printed, None, where), columns(study), where, "a column")


def check_correlations(study: Study) -> None:
    """Refuse correlations of columns or rows that are not there."""
    where = f"the correlations of {study.name}"
    check_keys(study.table.get("correlations") or {}, ("of", "with", "families"), where)
    asked = correlations(study)
    families = check_keys(asked["families"], None, f"families of {where}")
    for words in (asked["of"], asked["with"], *families.values()):
        if not isinstance(words, list):
            raise ConfigError(f"{where}: expected a list of names, not {words!r}")
    _check_known([*asked["of"], *asked["with"]], columns(study), where, "a column")
    for family, members in families.items():
        _check_known(members, selections(study), f"{where}, {family}", "a row")


def _check_row(study: Study, name: str, selection: Any, cells: Sequence[Cell]) -> None:
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


def _check_column(where: str, spec: Any, stages: Sequence[str]) -> None:
    for key, value in check_keys(spec, tuple(COLUMN_KEYS), where).items():
        if not isinstance(value, COLUMN_KEYS[key]):
            raise ConfigError(f"{where}: {key} {value!r} is not of the kind {COLUMN_KEYS[key].__name__}")
    if "value" not in spec:
        raise ConfigError(f"{where} needs a value: where in the results it is")
    _check_known([spec["stage"]] if "stage" in spec else [], dict.fromkeys(stages), where, "a stage")


def _check_known(names: Iterable[Any], known: Iterable[str], where: str, what: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: {name!r} is not {what}{did_you_mean(str(name), known)}")
