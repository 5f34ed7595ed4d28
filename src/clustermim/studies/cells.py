"""From a study to its cells: every point of every grid, with complete options and a key that names its folder."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from clustermim.errors import ConfigError
from clustermim.parsing import resolve
from clustermim.runs import NOT_CONFIGURATION, SUMMARY
from clustermim.stage_table import OLD_STAGES, STAGES, hint
from clustermim.studies.description import StageEntry, Study, reference, referred

MOST_CELLS = 10_000  # of one entry of a study
MOST_CHOICES = 100_000  # of cells that it refers to, most of which do not fit together


@dataclass(frozen=True)
class Cell:
    """One run of one stage."""

    name: str  # of its entry in the study
    stage: str
    axes: dict[str, Any]  # its place in the grids, its own and those of the cells it needs
    options: dict[str, Any]  # complete, but for what a study decides itself, NOT_CONFIGURATION
    cells: dict[str, Cell]  # by the names that options refer to, as @NAME
    key: str

    def folder(self, out: Path) -> Path:
        """Where its run is, inside the folder of the study."""
        return out / f"{self.stage.replace(' ', '-')}-{self.key}"

    def needs(self) -> list[Cell]:
        """The cells whose folders it reads."""
        return [self.cells[name] for name in referred(self.options.values())]

    def ancestors(self) -> list[Cell]:
        """The cells it needs, and those that they need, each once and before what needs it; itself last."""
        found: dict[tuple[str, str], Cell] = {}
        coming = [(self, False)]
        while coming:
            cell, is_ready = coming.pop()
            if is_ready:
                found[cell.name, cell.key] = cell
            elif (cell.name, cell.key) not in found:
                coming += [(cell, True), *((other, False) for other in cell.needs())]
        return list(found.values())

    def is_done(self, out: Path) -> bool:
        return (self.folder(out) / SUMMARY).exists()

    def arguments(self, out: Path) -> dict[str, Any]:
        """What its function is called with, where to write aside."""
        return replaced(self.options, lambda name, rest: f"{self.cells[name].folder(out)}{rest}")

    def title(self) -> str:
        """Its name and its place."""
        place = ", ".join(f"{axis} {value}" for axis, value in self.axes.items())
        return f"{self.name} ({place})" if place else self.name


def parameters(stage: str) -> Mapping[str, inspect.Parameter]:
    """Of the function of a stage."""
    return inspect.signature(STAGES[stage].load()).parameters


def replaced(options: dict[str, Any], replace: Callable[[str, str], Any]) -> dict[str, Any]:
    """The options with what a function of name and addition gives in the place of every reference."""

    def change(value: Any) -> Any:
        if isinstance(value, list):
            return [change(item) for item in value]
        return replace(*found) if (found := reference(value)) else value

    return {name: change(value) for name, value in options.items()}


def expand(study: Study) -> list[Cell]:
    """All cells of a study, those that are needed before those that need them, each once."""
    made: dict[str, list[Cell]] = {}
    entries = {entry.name: entry for entry in study.stages}
    for name in TopologicalSorter({name: entry.references() for name, entry in entries.items()}).static_order():
        made[name] = list(_cells(entries[name], made))
    cells = [cell for name in entries for cell in made[name]]
    ordered = [cell for last in cells for cell in last.ancestors()]
    return list({(cell.name, cell.key): cell for cell in ordered}.values())


def _cells(entry: StageEntry, made: dict[str, list[Cell]]) -> Iterator[Cell]:
    """A cell for each point of the entry's grid and each fitting choice of the cells it refers to."""
    known = [name for name, stage in STAGES.items() if stage.in_studies]
    if entry.stage not in known:
        raise ConfigError(f"{entry.name}: there is no stage {entry.stage!r}{hint(entry.stage, known, OLD_STAGES)}")
    _check_count(entry, math.prod(map(len, entry.grid.values())))
    for values in itertools.product(*entry.grid.values()):
        point = dict(zip(entry.grid, values, strict=True))
        options = entry.options | point
        for name in options:
            if name in NOT_CONFIGURATION:
                raise ConfigError(f"{entry.name}: {name} is for the study to decide, not an option of its stages")
        names = referred(options.values())
        _check_count(entry, math.prod(len(made[name]) for name in names), MOST_CHOICES)
        for choice in itertools.product(*(made[name] for name in names)):
            axes = _axes(point, choice)
            if axes is not None:
                complete = resolve(STAGES[entry.stage].load(), options, entry.name, skip=NOT_CONFIGURATION)
                cells = dict(zip(names, choice, strict=True))
                yield Cell(entry.name, entry.stage, axes, complete, cells, _key(entry.stage, complete, cells))


def _check_count(entry: StageEntry, count: int, most: int = MOST_CELLS) -> None:
    """Refuse an entry of the study that stands for more cells than anybody can run."""
    if count > most:
        raise ConfigError(f"{entry.name} stands for {count:,} cells, and {most:,} are the most: make its grid smaller")


def _axes(point: dict[str, Any], needed: Sequence[Cell]) -> dict[str, Any] | None:
    """A point with the axes of the cells it needs, or None where those are at different points of one axis."""
    axes = {axis: value[1:] if reference(value) else value for axis, value in point.items()}
    for cell in needed:
        if any(axes.get(axis, value) != value for axis, value in cell.axes.items()):
            return None
        axes |= cell.axes
    return axes


def _key(stage: str, options: dict[str, Any], cells: dict[str, Cell]) -> str:
    """A hash of all that the result depends on.

    An option that is off, as it is by default, does not count: a version that adds one finds the cells of earlier ones.
    """
    defaults = parameters(stage)
    known = replaced(options, lambda name, rest: {"cell": cells[name].key} | ({"rest": rest} if rest else {}))
    counted = {name: value for name, value in known.items() if value or value != defaults[name].default}
    return hashlib.sha256(json.dumps([stage, counted], sort_keys=True).encode()).hexdigest()[:12]
