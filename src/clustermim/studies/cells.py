"""From a study to its cells: every point of every grid, with complete options and a key that names its folder."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustermim.errors import ConfigError
from clustermim.parsing import resolve
from clustermim.runs import SUMMARY
from clustermim.stage_table import OLD_STAGES, STAGES, hint
from clustermim.studies.description import StageEntry, Study, is_reference, referred, split_reference

# What a study decides itself: where a cell is written, and how it is continued and shown.
OWN = ("out", "resume", "overwrite", "stop_after", "track", "json")


@dataclass(frozen=True)
class Reference:
    """The folder of another cell as the value of an option."""

    cell: Cell
    rest: str = ""  # what is added to the folder

    def text(self) -> str:
        """As a study file has it."""
        return f"@{self.cell.name}{self.rest}"

    def place(self, out: Path) -> str:
        """As a command line has it."""
        return f"{self.cell.folder(out)}{self.rest}"

    def key(self) -> dict[str, str]:
        """What it adds to the key of a cell."""
        return {"cell": self.cell.key, **({"rest": self.rest} if self.rest else {})}


@dataclass(frozen=True)
class Cell:
    """One run of one stage."""

    name: str  # of its entry in the study
    stage: str
    axes: dict[str, Any]  # its place in the grids, its own and those of the cells it needs
    options: dict[str, Any]  # complete, but for OWN
    key: str

    def folder(self, out: Path) -> Path:
        """Where its run is, inside the folder of the study."""
        return out / f"{self.stage.replace(' ', '-')}-{self.key}"

    def needs(self) -> list[Cell]:
        """The cells whose folders it reads."""
        found: list[Cell] = []
        replaced(self.options, lambda reference: found.append(reference.cell))
        return list({cell.key: cell for cell in found}.values())

    def ancestors(self) -> Iterator[Cell]:
        """Itself, the cells it needs, and those that they need."""
        yield self
        for cell in self.needs():
            yield from cell.ancestors()

    def is_done(self, out: Path) -> bool:
        return (self.folder(out) / SUMMARY).exists()

    def is_long(self) -> bool:
        """Whether its stage can be interrupted and continued."""
        return "resume" in inspect.signature(STAGES[self.stage].load()).parameters

    def arguments(self, out: Path) -> dict[str, Any]:
        """What its function is called with, where to write aside."""
        return replaced(self.options, lambda reference: reference.place(out))

    def title(self) -> str:
        """Its name and its place."""
        place = ", ".join(f"{axis} {value}" for axis, value in self.axes.items())
        return f"{self.name} ({place})" if place else self.name


def replaced(options: dict[str, Any], replace: Callable[[Reference], Any]) -> dict[str, Any]:
    """The options with something in the place of every reference."""
    return _changed(options, lambda value: replace(value) if isinstance(value, Reference) else value)


def _changed(options: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The options, each value changed, or each item of it where it is a list."""
    return {
        name: [change(item) for item in value] if isinstance(value, list) else change(value)
        for name, value in options.items()
    }


def expand(study: Study) -> list[Cell]:
    """All cells of a study, those that are needed before those that need them, each once."""
    made: dict[str, list[Cell]] = {}
    entries = {entry.name: entry for entry in study.stages}

    def make(entry: StageEntry) -> list[Cell]:
        if entry.name not in made:
            for name in entry.references():
                make(entries[name])
            made[entry.name] = list(_cells(entry, made))
        return made[entry.name]

    cells = [cell for entry in study.stages for cell in make(entry)]
    ordered = [cell for last in cells for cell in reversed(list(last.ancestors()))]
    return list({(cell.name, cell.key): cell for cell in ordered}.values())


def _cells(entry: StageEntry, made: dict[str, list[Cell]]) -> Iterator[Cell]:
    """A cell for each point of the entry's grid and each fitting choice of the cells it refers to."""
    known = [name for name, stage in STAGES.items() if stage.in_studies]
    if entry.stage not in known:
        raise ConfigError(f"{entry.name}: there is no stage {entry.stage!r}{hint(entry.stage, known, OLD_STAGES)}")
    for point in itertools.product(*entry.grid.values()):
        settled = entry.options | dict(zip(entry.grid, point, strict=True))
        names = referred(settled.values())
        for choice in itertools.product(*(made[name] for name in names)):
            axes: dict[str, Any] | None = {
                axis: value[1:] if is_reference(value) else value for axis, value in zip(entry.grid, point, strict=True)
            }
            for cell in choice:
                axes = _joined(axes, cell.axes)
            if axes is not None:
                yield _cell(entry, axes, _with_cells(settled, dict(zip(names, choice, strict=True))))


def _joined(axes: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any] | None:
    """Both places together, or None where they are different points of one axis."""
    if axes is None or any(axes[axis] != value for axis, value in more.items() if axis in axes):
        return None
    return axes | more


def _with_cells(options: dict[str, Any], cells: dict[str, Cell]) -> dict[str, Any]:
    """The options with every `@NAME` as a reference to the cell of that name."""

    def refer(value: Any) -> Any:
        if not is_reference(value):
            return value
        name, rest = split_reference(value)
        return Reference(cells[name], rest)

    return _changed(options, refer)


def _cell(entry: StageEntry, axes: dict[str, Any], options: dict[str, Any]) -> Cell:
    for name in options:
        if name in OWN:
            raise ConfigError(f"{entry.name}: {name} is for the study to decide, not an option of its stages")
    plain = replaced(options, Reference.text)
    complete = resolve(STAGES[entry.stage].load(), plain, entry.name, skip=OWN)
    complete |= {name: value for name, value in options.items() if value != plain[name]}
    return Cell(entry.name, entry.stage, axes, complete, _key(entry.stage, complete))


def _key(stage: str, options: dict[str, Any]) -> str:
    """A hash of all that the result depends on.

    An option that is off, as it is by default, does not count: a version that adds one finds the cells of earlier ones.
    """
    parameters = inspect.signature(STAGES[stage].load()).parameters
    counted = {
        name: value
        for name, value in replaced(options, Reference.key).items()
        if value or value != parameters[name].default
    }
    return hashlib.sha256(json.dumps([stage, counted], sort_keys=True).encode()).hexdigest()[:12]
