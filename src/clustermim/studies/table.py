"""The table of a study, made of its record (records.py).

    table:
      rows: {MAE: mae, "ClusterMIM, K = 50": {clustermim: {k: 50}}}     # a stage, with places on its axes
      columns:
        linear: {stage: probe, value: avg.accuracy, percent: true}    # of the row's probes, by name or kind
        loss: {value: loss, decimals: 4}                              # of the row's cell itself
        psnr: {value: psnr, optional: true}                           # some rows have none
        nmi: {stage: score, value: nmi, hidden: true}                  # only for correlations (correlation.py)
      differences: [["ClusterMIM, K = 50", MAE]]                        # paired by seed
      paper: {MAE: {linear: 44.3}}                                      # what the paper prints, in its own setting

A number of the table is the mean over the seeds of a row, with the standard deviation between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from clustermim.errors import ConfigError
from clustermim.mean_ci import MeanCI
from clustermim.stage_table import hint
from clustermim.studies.description import Study


class Row(NamedTuple):
    """One row of the table."""

    name: str
    values: dict[str, dict[Any, float]]  # by column, then by seed

    def estimate(self, column: str) -> MeanCI | None:
        found = list(self.values.get(column, {}).values())
        return MeanCI.of(found) if found else None


def make_rows(study: Study, record: dict[str, Any]) -> list[Row]:
    """The rows of a study's table from its record; what is not there yet is left out."""
    return [
        Row(name, {column: _by_seed(record, (name, *at), column, spec) for column, spec in columns(study).items()})
        for name, at in selections(study).items()
    ]


def selections(study: Study) -> dict[str, tuple[str, dict[str, Any]]]:
    """The stage of each row, and its place on the axes."""
    rows = (study.table.get("rows") or {}).items()
    return {name: next(iter(at.items())) if isinstance(at, dict) else (at, {}) for name, at in rows}


def columns(study: Study) -> dict[str, dict[str, Any]]:
    """The columns of the table."""
    return study.table.get("columns") or {}


def differences(study: Study, rows: Sequence[Row]) -> Iterator[tuple[str, str, dict[str, MeanCI]]]:
    """For each pair of rows, the mean difference of each column over the seeds that both have."""
    by_name = {row.name: row for row in rows}
    for more, less in study.table.get("differences") or []:
        found = {}
        for column in columns(study):
            first, second = by_name[more].values[column], by_name[less].values[column]
            paired = [first[seed] - second[seed] for seed in first if seed in second]
            if paired:
                found[column] = MeanCI.of(paired)
        yield more, less, found


def _by_seed(
    record: dict[str, Any], row: tuple[str, str, dict[str, Any]], column: str, spec: dict[str, Any]
) -> dict[Any, float]:
    """The value of a column for each seed of a row, of which there must be one."""
    name, stage, place = row
    found: dict[Any, tuple[str, float]] = {}
    for cell, value in _values(record, stage, place, spec):
        seed, key = cell["axes"].get("seed", 0), cell["key"]
        if seed in found and found[seed][0] != key:
            raise ConfigError(
                f"the table's row {name!r} has several values of {column!r} for seed {seed}: say in the row at which "
                "place on its axes it is, or in the column by `where`"
            )
        found[seed] = key, value
    return {seed: value for seed, (_, value) in found.items()}


def _values(
    record: dict[str, Any], stage: str, place: dict[str, Any], spec: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], float]]:
    """Every cell of the column's stage that comes from a cell of the row's stage at that place, and its value."""
    cells = list({(cell["name"], cell["key"]): cell for cell in record["cells"]}.values())
    row = [cell for cell in cells if cell["name"] == stage and is_at(cell["axes"], cell["options"], place)]
    keys, kinds = {cell["key"] for cell in row}, {cell["stage"] for cell in row}
    for cell in cells:
        named = spec.get("stage", stage) in (cell["name"], cell["stage"])
        if not named or not is_at(cell["axes"], cell["options"], spec.get("where") or {}):
            continue
        if cell["key"] in keys or keys & set(_ancestors(cell, cells, kinds)):
            value = _look_up(cell, spec["value"], bool(spec.get("optional")))
            if value is not None:
                yield cell, 100 * value if spec.get("percent") else value


def _ancestors(cell: dict[str, Any], cells: list[dict[str, Any]], last: set[str]) -> Iterator[str]:
    """Keys of the cells it comes from, up to the first of one of these kinds: a student is not its teacher's result."""
    for key in cell["needs"]:
        yield key
        for other in cells:
            if other["key"] == key and other["stage"] not in last:
                yield from _ancestors(other, cells, last)


def is_at(axes: dict[str, Any], options: dict[str, Any], place: dict[str, Any]) -> bool:
    """Whether a cell has these values on its axes, or among its options."""
    return all(axes.get(axis, options.get(axis)) == value for axis, value in place.items())


def _look_up(cell: dict[str, Any], path: str, optional: bool) -> float | None:
    """A result; None of a score that could not be computed, which is kept as null, and of an optional one."""
    value: Any = cell["results"]
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            if optional:
                return None
            raise ConfigError(f"the results of {cell['name']} have no {path!r}{hint(path, cell['results'])}")
        value = value[part]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path!r} in the results of {cell['name']} is not a number")
    return float(value)
