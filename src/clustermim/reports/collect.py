"""Run folders, wherever they lie below the folders that were named: found, read and checked, the others told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clustermim.errors import RunError
from clustermim.runs import CONFIG, SUMMARY, read_summary
from clustermim.tokenizers.base import DESCRIPTION, FORMAT

LEVELS = 2  # a folder of studies, and in it the folder of a study


@dataclass(frozen=True)
class RunInfo:
    """One complete run folder."""

    folder: Path
    stage: str
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def results(self) -> dict[str, Any]:
        """What its stage measured."""
        return dict(self.summary["results"])

    @property
    def data(self) -> str | None:
        """The data it was made with."""
        spec = (self.summary.get("data") or {}).get("spec", self.config.get("data"))
        return spec if isinstance(spec, str) else None


def collect(folders: Sequence[str]) -> tuple[list[RunInfo], list[str]]:
    """The complete runs in some folders and below them, and a line for each folder that is left out."""
    found: dict[Path, RunInfo] = {}
    left_out: dict[Path, str] = {}
    for name in folders:
        top = Path(name)
        if not top.is_dir():
            raise RunError(f"{name} is not a folder; name run folders, or folders that hold them")
        for folder in _run_folders(top, LEVELS):
            place = folder.resolve()
            try:
                found.setdefault(place, _read(folder))
            except RunError as error:
                left_out.setdefault(place, str(error))
    if not found:
        named = ", ".join(folders)
        if left_out:
            raise RunError(f"there is nothing to report in {named}: {next(iter(left_out.values()))}")
        raise RunError(f"there is no run folder in {named} or up to {LEVELS} levels below; make runs first")
    return list(found.values()), list(left_out.values())


def _run_folders(folder: Path, levels: int) -> Iterator[Path]:
    """Run folders in a folder and so many levels below; in a run folder also those that lie directly inside."""
    is_run = any((folder / name).exists() for name in (SUMMARY, CONFIG, DESCRIPTION))
    if is_run:
        yield folder
        levels = 1  # its scores and accuracies, however deep it was found itself
    if not levels:
        return
    for inside in sorted(folder.iterdir()):
        if inside.is_dir() and not inside.name.startswith("."):  # hidden: unfinished work of a stage
            yield from _run_folders(inside, 0 if is_run else levels - 1)


def _read(folder: Path) -> RunInfo:
    """One run folder; a tokenizer that was saved by itself counts as fitted, on data unknown."""
    described = _read_description(folder)
    if described is not None and not (folder / SUMMARY).exists() and not (folder / CONFIG).exists():
        config = dict(described.get("config") or {})
        return RunInfo(folder, f"fit {described.get('kind')}", config, {"results": dict(described.get("fitted") or {})})
    if not (folder / SUMMARY).exists():
        raise RunError(f"{folder} is incomplete: {SUMMARY} is not there; finish the run, or remove it")
    summary = read_summary(folder)
    stage, results = summary.get("stage"), summary.get("results")
    if not isinstance(stage, str) or not isinstance(results, dict):
        raise RunError(f"{folder / SUMMARY} is of another version or no summary: it has no stage and results")
    if described is not None:  # the size of the codebook, whatever the stage says of itself
        summary["results"] = {**dict(described.get("fitted") or {}), **results}
    return RunInfo(folder, stage, _read_config(folder / CONFIG), summary)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} is incomplete: {path.name} is not there; run its stage again") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise RunError(f"{path} is not a configuration of this version")
    return config


def _read_description(folder: Path) -> dict[str, Any] | None:
    """The description of the tokenizer in a folder, if it holds one."""
    path = folder / DESCRIPTION
    if not path.exists():
        return None
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise RunError(f"{path} is not a tokenizer of format {FORMAT}, the one this version reads")
    return described
