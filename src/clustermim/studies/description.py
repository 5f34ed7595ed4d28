"""A study as it is written: a YAML file read into plain records, and checked.

    title: MAE against ClusterMIM
    about: one paragraph
    parts:                                  # options that several stages share
      recipe: {data: cifar10/train, epochs: 7}
    stages:                                 # each becomes as many cells as its grid has points
      - {name: tokens, stage: fit kmeans, options: {data: cifar10/train, k: 50}}
      - {name: clustermim, stage: pretrain, use: [recipe], options: {tokenizer: "@tokens"}, grid: {seed: [0, 1, 2]}}
      - {name: probe, stage: probe, grid: {run: ["@clustermim"]}, options: {data: …, test_data: …}}
    table: …                                # see table.py

`@NAME` stands for the folder of a cell of another stage: one cell here for each cell there. What follows a question
mark is kept: `@NAME?layer=3`, as a teacher, is that layer of an encoder. Axes of one name are one axis: where both
stages have a grid over seed, seeds are paired.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from clustermim.errors import ConfigError, did_you_mean
from clustermim.reading import check_shape, read_yaml

# What keys there are, with the kind of their values: `str` stands for any key, `object` for any value.
COLUMN: dict[str, type] = dict.fromkeys(("percent", "optional", "hidden", "total"), bool)
COLUMN |= {"stage": str, "value": str, "decimals": int, "scale": float, "where": dict}
TABLE = {
    "rows": {str: object},
    "columns": {str: COLUMN},
    "differences": [[str]],
    "correlations": {"of": [str], "with": [str], "families": {str: [str]}, "kinds": {str: [str]}},
    "paper": {str: {str: object}},
}
STAGE = {"name": str, "stage": str, "use": object, "options": {str: object}, "grid": {str: [object]}}
STUDY = {"title": object, "about": object, "parts": {str: {str: object}}, "stages": [STAGE], "table": TABLE}


@dataclass(frozen=True)
class StageEntry:
    """One entry under `stages`, its parts merged into its options."""

    name: str
    stage: str
    options: dict[str, Any]
    grid: dict[str, list[Any]]

    def references(self) -> list[str]:
        """Names of the stages it needs, in the order of their appearance."""
        return referred([*self.options.values(), *self.grid.values()])


@dataclass(frozen=True)
class Study:
    """What a study file holds."""

    name: str
    title: str
    about: str
    stages: tuple[StageEntry, ...]
    table: dict[str, Any] = field(default_factory=dict)


def reference(value: Any) -> tuple[str, str] | None:
    """The name of the stage that a value stands for, and what is added to its folder; None of any other value.

    >>> reference("@mae?layer=3"), reference("@mae"), reference("mae")
    (('mae', '?layer=3'), ('mae', ''), None)
    """
    found = re.fullmatch(r"@([^?]*)(.*)", value, re.DOTALL) if isinstance(value, str) else None
    return (found[1], found[2]) if found else None


def referred(values: Iterable[Any]) -> list[str]:
    """Names of the stages that values, and the items of lists among them, stand for, each once."""
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(found[0] for item in items if (found := reference(item))))


def read_study(path: str | Path) -> Study:
    """The study of a YAML file."""
    path = Path(path)
    try:
        record = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"there is no study {path}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read, or is not YAML: {reason}") from error
    return make_study(record, path.stem, str(path))


def make_study(record: Any, name: str, where: str) -> Study:
    """The study that such keys describe; `where` begins an error."""
    check_shape(record, STUDY, where)
    if not record.get("stages"):
        raise ConfigError(f"{where} has no list of stages")
    parts = record.get("parts") or {}
    stages = tuple(_entry(entry, parts, f"{where}, stage {place}") for place, entry in enumerate(record["stages"], 1))
    about = str(record.get("about") or "").strip()
    study = Study(name, str(record.get("title") or name), about, stages, record.get("table") or {})
    _check_names(study, where)
    return study


def _entry(keys: dict[str, Any], parts: dict[str, Any], where: str) -> StageEntry:
    for key in ("name", "stage"):
        if not keys.get(key):
            raise ConfigError(f"{where} has no {key}")
    where, used = f"{where} ({keys['name']})", keys.get("use") or []
    options: dict[str, Any] = {}
    for part in used if isinstance(used, list) else [used]:
        if part not in parts:
            raise ConfigError(f"{where} uses the part {part!r}, which is not there{did_you_mean(str(part), parts)}")
        options |= parts[part]
    grid = keys.get("grid") or {}
    for axis, values in grid.items():
        if not values or len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"{where}: the axis {axis} has {'a value twice' if values else 'no values'}")
    return StageEntry(keys["name"], keys["stage"], options | (keys.get("options") or {}), grid)


def _check_names(study: Study, where: str) -> None:
    """Names are there once, and references lead to them without a circle."""
    needs: dict[str, list[str]] = {}
    for entry in study.stages:
        if entry.name in needs:
            raise ConfigError(f"{where} has two stages of the name {entry.name!r}")
        needs[entry.name] = entry.references()
    for name, needed in needs.items():
        for other in needed:
            if other not in needs:
                raise ConfigError(f"{where}: {name} needs @{other}, which is not there{did_you_mean(other, needs)}")
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        raise ConfigError(f"{where} goes in a circle: {' needs '.join(reversed(error.args[1]))}") from None
