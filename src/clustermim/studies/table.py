"""The table of a study, checked before the work and made of its record (records.py).

    table:
      rows: {MAE: mae, "ClusterMIM, K = 50": {clustermim: {k: 50}}}     # a stage, with places on its axes
      columns:
        linear: {stage: probe, value: avg.accuracy, percent: true}    # of the row's probes, by name or kind
        loss: {value: loss, decimals: 4}                              # of the row's cell itself
        psnr: {value: psnr, optional: true}                           # some rows have none
        nmi: {stage: score, value: nmi, hidden: true}                  # only for correlations (correlation.py)
        TFLOPs: {value: flops, total: true, scale: 1e-12}             # with all that the row's cell was made of
      differences: [["ClusterMIM, K = 50", MAE]]                        # of means, with Welch's interval
      paper: {MAE: {linear: 44.3}}                                      # what the paper prints, in its own setting

A number of the table is the mean over the seeds of a row, with the standard deviation between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from clustermim.errors import ConfigError, did_you_mean
from clustermim.mean_ci import Difference, MeanCI
from clustermim.stage_table import hint
from clustermim.studies.cells import Cell
from clustermim.studies.description import Study

MEASURING = ("probe", "knn", "segment", "finetune")  # the stages that measure an encoder


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
        Row(name, {column: _by_seed(record, name, *at, column, spec) for column, spec in columns(study).items()})
        for name, at in selections(study).items()
    ]


def selections(study: Study) -> dict[str, tuple[str, dict[str, Any]]]:
    """The stage of each row, and its place on the axes."""
    found = {}
    for name, at in (study.table.get("rows") or {}).items():
        places = at if isinstance(at, dict) else {str(at): {}}
        if [type(place) for place in places.values()] != [dict]:
            raise ConfigError(f"the table's row {name!r} is neither a stage nor one at a place, {{STAGE: {{k: 50}}}}")
        found[name] = next(iter(places.items()))
    return found


def columns(study: Study) -> dict[str, dict[str, Any]]:
    """The columns of the table."""
    return study.table.get("columns") or {}


def outcome_columns(study: Study) -> dict[str, dict[str, Any]]:
    """The columns that say what training gave: accuracies of probes, neighbours and fine-tuning."""
    stages = {entry.name: entry.stage for entry in study.stages}
    return {
        name: spec
        for name, spec in columns(study).items()
        if stages.get(spec.get("stage", ""), spec.get("stage")) in MEASURING
        and str(spec.get("value")).endswith("accuracy")
    }


def differences(study: Study, rows: Sequence[Row]) -> Iterator[tuple[str, str, dict[str, Difference]]]:
    """For each pair of rows, the difference of their means in each column, with Welch's interval."""
    by_name = {row.name: row for row in rows}
    for more, less in study.table.get("differences") or []:
        pairs = {name: (by_name[more].estimate(name), by_name[less].estimate(name)) for name in columns(study)}
        yield more, less, {name: a.minus(b) for name, (a, b) in pairs.items() if a is not None and b is not None}


def _by_seed(
    record: dict[str, Any], name: str, stage: str, place: dict[str, Any], column: str, spec: dict[str, Any]
) -> dict[Any, float]:
    """The value of a column for each seed of a row: of the cells that come from one of its stage at its place."""
    cells = list({(cell["name"], cell["key"]): cell for cell in record["cells"]}.values())
    row = [cell for cell in cells if cell["name"] == stage and is_at(cell["axes"], cell["options"], place)]
    keys, kinds = {cell["key"] for cell in row}, {cell["stage"] for cell in row}
    found: dict[Any, tuple[str, float]] = {}
    for cell in cells:
        named = spec.get("stage", stage) in (cell["name"], cell["stage"])
        if not named or not is_at(cell["axes"], cell["options"], spec.get("where") or {}):
            continue
        if cell["key"] not in keys and not keys & set(_ancestors(cell, cells, kinds)):
            continue
        value = _look_up(cell, spec["value"], bool(spec.get("optional")))
        if value is not None and spec.get("total"):
            keys_before = set(_ancestors(cell, cells, set()))
            value += sum(_look_up(other, spec["value"], True) or 0.0 for other in cells if other["key"] in keys_before)
        seed, key = cell["axes"].get("seed", 0), cell["key"]
        if value is None:
            continue
        if seed in found and found[seed][0] != key:
            raise ConfigError(
                f"the table's row {name!r} has several values of {column!r} for seed {seed}: say in the row at which "
                "place on its axes it is, or in the column by `where`"
            )
        found[seed] = key, value * (100 if spec.get("percent") else spec.get("scale", 1))
    return {seed: value for seed, (_, value) in found.items()}


def _ancestors(cell: dict[str, Any], cells: list[dict[str, Any]], last: set[str]) -> Iterator[str]:
    """Keys of the cells it comes from, up to the first of one of these kinds: a student is not its teacher's result."""
    coming, seen = list(cell["needs"]), set[str]()
    while coming:
        if (key := coming.pop()) not in seen:  # a record may go in a circle
            seen.add(key)
            yield key
            for other in cells:
                if other["key"] == key and other["stage"] not in last:
                    coming += other["needs"]


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


def correlations(study: Study) -> dict[str, Any]:
    """The description of the correlations; nothing is asked for where there is none."""
    asked = study.table.get("correlations") or {}
    return {"of": [], "with": [], "families": {}, "kinds": {}} | {key: value for key, value in asked.items() if value}


def check_table(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse a table that names what is not there."""
    names = [entry.name for entry in study.stages]
    for name, (stage, place) in selections(study).items():
        _check_known([stage], names, f"the table's row {name!r}", "a stage")
        if not any(cell.name == stage and is_at(cell.axes, cell.options, place) for cell in cells):
            raise ConfigError(f"the table's row {name!r}: no cell of {stage} is at {place}")
    stages = dict.fromkeys(word for cell in cells for word in (cell.name, cell.stage))
    for name, spec in columns(study).items():
        if "value" not in spec:
            raise ConfigError(f"the table's column {name!r} needs a value: where in the results it is")
        _check_known([spec["stage"]] if "stage" in spec else [], stages, f"the table's column {name!r}", "a stage")
    check_names(study)


def check_names(study: Study) -> None:
    """Refuse differences, correlations and numbers of the paper of rows or columns that are not there."""
    rows, known, paper = selections(study), columns(study), study.table.get("paper") or {}
    for pair in study.table.get("differences") or []:
        if len(pair) != 2:
            raise ConfigError(
                f"the table's difference {pair!r} is not a pair of rows; a name with a comma needs quotes"
            )
        _check_known(pair, rows, "the table's differences", "a row")
    _check_known(paper, rows, "paper", "a row")
    for row, printed in paper.items():
        _check_known(printed, known, f"the paper's numbers of {row!r}", "a column")
    asked = correlations(study)
    _check_known([*asked["of"], *asked["with"]], known, "the table's correlations", "a column")
    for name, members in (asked["families"] | asked["kinds"]).items():
        _check_known(members, rows, f"the table's correlations, {name}", "a row")


def _check_known(names: Iterable[Any], known: Iterable[str], where: str, what: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: {name!r} is not {what}{did_you_mean(str(name), known)}")
