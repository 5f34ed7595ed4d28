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

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clustermim.errors import ConfigError, did_you_mean

REFERENCE = "@"


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


def is_reference(value: Any) -> bool:
    """Whether a value stands for the folder of another stage."""
    return isinstance(value, str) and value.startswith(REFERENCE)


def referred(values: Iterable[Any]) -> list[str]:
    """Names of the stages that values, and the items of lists among them, stand for, each once."""
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(split_reference(item)[0] for item in items if is_reference(item)))


def split_reference(value: str) -> tuple[str, str]:
    """The name of the stage, and what is added to its folder.

    >>> split_reference("@mae?layer=3"), split_reference("@mae")
    (('mae', '?layer=3'), ('mae', ''))
    """
    name, mark, rest = value[len(REFERENCE) :].partition("?")
    return name, mark + rest


def read_study(path: str | Path) -> Study:
    """The study of a YAML file."""
    path = Path(path)
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no study {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    return make_study(record, path.stem, str(path))


def make_study(record: Any, name: str, where: str) -> Study:
    """The study that such keys describe; `where` begins an error."""
    keys = check_keys(record, ("title", "about", "parts", "stages", "table"), where)
    if not isinstance(keys.get("stages"), list) or not keys["stages"]:
        raise ConfigError(f"{where} has no list of stages")
    parts = check_keys(keys.get("parts") or {}, None, f"parts of {where}")
    stages = tuple(_entry(entry, parts, f"{where}, stage {place}") for place, entry in enumerate(keys["stages"], 1))
    table = check_keys(keys.get("table") or {}, None, f"table of {where}")
    study = Study(name, str(keys.get("title") or name), str(keys.get("about") or "").strip(), stages, table)
    _check_names(study, where)
    return study


def check_keys(value: Any, allowed: tuple[str, ...] | None, where: str) -> dict[str, Any]:
    """The mapping, when it is one and has no key beyond those allowed."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: expected keys with values, not {value!r}")
    for key in value:
        if allowed is not None and key not in allowed:
            raise ConfigError(f"{where} has a key {key!r}{did_you_mean(key, allowed)}")
    return value


def _entry(value: Any, parts: dict[str, Any], where: str) -> StageEntry:
    keys = check_keys(value, ("name", "stage", "use", "options", "grid"), where)
    for key in ("name", "stage"):
        if not isinstance(keys.get(key), str):
            raise ConfigError(f"{where} has no {key}")
    where = f"{where} ({keys['name']})"
    used = keys.get("use") or []
    options: dict[str, Any] = {}
    for part in used if isinstance(used, list) else [used]:
        if part not in parts:
            raise ConfigError(f"{where} uses the part {part!r}, which is not there{did_you_mean(str(part), parts)}")
        options |= check_keys(parts[part], None, f"the part {part}")
    options |= check_keys(keys.get("options") or {}, None, f"options of {where}")
    grid = check_keys(keys.get("grid") or {}, None, f"grid of {where}")
    for axis, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: the axis {axis} needs a list of values, not {values!r}")
        if len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"{where}: the axis {axis} has a value twice")
    return StageEntry(keys["name"], keys["stage"], options, grid)


def _check_names(study: Study, where: str) -> None:
    """Names are there once, and references lead to them without a circle."""
    entries: dict[str, StageEntry] = {}
    for entry in study.stages:
        if entry.name in entries:
            raise ConfigError(f"{where} has two stages of the name {entry.name!r}")
        entries[entry.name] = entry

    def follow(name: str, way: tuple[str, ...]) -> None:
        if name not in entries:
            raise ConfigError(f"{where}: {way[-1]} needs @{name}, which is not there{did_you_mean(name, entries)}")
        if name in way:
            raise ConfigError(f"{where} goes in a circle: {' needs '.join((*way[way.index(name) :], name))}")
        for needed in entries[name].references():
            follow(needed, (*way, name))

    for name in entries:
        follow(name, ())
