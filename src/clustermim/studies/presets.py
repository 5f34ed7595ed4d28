"""The methods that come with the package, and studies with other values of their options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clustermim.errors import ConfigError, did_you_mean
from clustermim.stage_table import hint
from clustermim.studies.cells import parameters
from clustermim.studies.description import StageEntry, Study, read_study

FOLDER = Path(__file__).parents[1] / "presets"


@dataclass(frozen=True)
class Overrides:
    """Options of a preset that are often others; None leaves the preset's.

    Args:
        data: the images to train on.
        test_data: the images to test on; with `data` alone, stages that need them are left out.
        model: size of the encoder.
        patch_size: side of a patch in pixels.
        epochs: passes over the images, of pretraining.
        batch_size: images of a step.
        augment: how images are changed while training.
        seed: of everything random.
        device: where to compute.
    """

    data: str | None = None
    test_data: str | None = None
    model: str | None = None
    patch_size: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    augment: str | None = None
    seed: int | None = None
    device: str | None = None


def presets() -> dict[str, Path]:
    """The files of all presets, by their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def open_study(study: Study | str | Path) -> Study:
    """The study of a preset's name or of a YAML file."""
    if isinstance(study, Study):
        return study
    if not isinstance(study, str | Path):
        raise ConfigError(f"a study is the name of a preset or a YAML file, not a {type(study).__name__}")
    if isinstance(study, Path) or Path(study).suffix or "/" in study:
        return read_study(study)
    if study not in presets():
        raise ConfigError(f"there is no preset {study!r}{did_you_mean(study, presets())}")
    return read_study(presets()[study])


def override(study: Study, **options: Any) -> Study:
    """The study with other values: of an option where it gives that itself, else in every stage that has it.

    `data` are the images to train on. Stages that read the images of `test_data` as their data get those of
    `test_data`. When only `data` is given, stages that need test images are left out, with their columns.
    """
    options = {name: value for name, value in options.items() if value is not None}
    data, test_data = options.pop("data", None), options.get("test_data")
    tests = [entry.options["test_data"] for entry in study.stages if "test_data" in entry.options]
    entries = []
    for entry in study.stages:
        changed = dict(entry.options)
        if "data" in changed:
            changed["data"] = (test_data if changed["data"] in tests else data) or data or changed["data"]
        if not (data and not test_data and "test_data" in changed):
            entries.append(replace(entry, options=changed))
    for name, value in options.items():
        _change(entries, name, value, study.name)
    kept = {word for entry in entries for word in (entry.name, entry.stage)}
    table = dict(study.table)
    if len(entries) < len(study.stages):
        shown = table.get("columns") or {}
        shown = {name: spec for name, spec in shown.items() if spec.get("stage", entries[0].stage) in kept}
        table = {"rows": table.get("rows"), "columns": shown} if shown else {}
    return replace(study, stages=tuple(entries), table=table)


def _change(entries: list[StageEntry], name: str, value: Any, study: str) -> None:
    """Give the stages another value of an option."""
    have = {entry.name: parameters(entry.stage) for entry in entries}
    giving = [entry for entry in entries if name in entry.options or name in entry.grid]
    chosen = giving or [entry for entry in entries if name in have[entry.name]]
    if not chosen:
        known = dict.fromkeys(option for options in have.values() for option in options)
        raise ConfigError(f"no stage of {study} has the option {name!r}{hint(name, known)}")
    for place, entry in enumerate(entries):
        if entry in chosen:
            grid = {axis: values for axis, values in entry.grid.items() if axis != name}
            entries[place] = replace(entry, options={**entry.options, name: value}, grid=grid)
