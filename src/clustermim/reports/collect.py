"""Run folders, wherever they lie below the folders that were named: found, read and checked.

They may be a stranger's: no link is followed out of the named folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustermim.errors import RunError
from clustermim.reading import Whole, check_shape
from clustermim.runs import CONFIG, SUMMARY, SUMMARY_SHAPE, read_mapping
from clustermim.selection.advice import RECORD
from clustermim.tokenizers.base import DESCRIPTION, FORMAT

ADVISE = "advise"  # the stage of a folder of tokenizers that advise made, which has its record alone
ADVICE = Whole({"recommended": str, "scores": {str: {"parts": [float], str: object}}, str: object})
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
    roots = [Path(os.path.realpath(name)) for name in folders]
    for name in folders:
        if not Path(name).is_dir():
            raise RunError(f"{name} is not a folder; name run folders, or folders that hold them")
        for folder in _run_folders(Path(name), LEVELS, roots):
            place = folder.resolve()
            try:
                _check_inside(folder, roots)
                found.setdefault(place, _read_run(folder))
            except RunError as error:
                left_out.setdefault(place, str(error))
    if not found:
        named = ", ".join(folders)
        if left_out:
            raise RunError(f"there is nothing to report in {named}: {next(iter(left_out.values()))}")
        raise RunError(f"there is no run folder in {named} or up to {LEVELS} levels below; make runs first")
    return list(found.values()), list(left_out.values())


def _is_inside(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a path lies in one of some folders when all links are followed."""
    return any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots)


def _check_inside(folder: Path, roots: Sequence[Path]) -> None:
    """Refuse a run folder that is a link to somewhere else, or holds files that are; folders in it come alone."""
    for path in [folder, *(sorted(folder.iterdir()) if _is_inside(folder, roots) else ())]:
        if not _is_inside(path, roots) and (path is folder or not path.is_dir()):
            raise RunError(f"{path} is a link out of the folders that were named: name the folder it leads to as well")


def _run_folders(folder: Path, levels: int, roots: Sequence[Path]) -> Iterator[Path]:
    """Run folders in a folder and so many levels below; in a run folder also those that lie directly inside.

    A link out of the roots is given too, unopened.
    """
    if not _is_inside(folder, roots):
        yield folder
        return
    is_run = any((folder / name).exists() for name in (SUMMARY, CONFIG, DESCRIPTION, RECORD))
    if is_run:
        yield folder
    if not is_run and not levels:
        return
    for inside in sorted(folder.iterdir()):
        if inside.is_dir() and not inside.name.startswith("."):  # hidden: unfinished work of a stage
            yield from _run_folders(inside, 0 if is_run else levels - 1, roots)


def _read_run(folder: Path) -> RunInfo:
    """One run folder; a tokenizer that was saved by itself counts as fitted, on data unknown."""
    if (folder / RECORD).exists():
        advice = _read(folder / RECORD)
        check_shape(advice, ADVICE, str(folder / RECORD), RunError)
        return RunInfo(folder, ADVISE, {}, {"results": advice})
    described = _read(folder / DESCRIPTION) if (folder / DESCRIPTION).exists() else {}
    if described and described.get("format") != FORMAT:
        raise RunError(f"{folder / DESCRIPTION} is not a tokenizer of format {FORMAT}, the one this version reads")
    check_shape(
        described, {"kind": str, "fitted": {str: object}, "config": {str: object}, str: object}, str(folder), RunError
    )
    fitted = dict(described.get("fitted") or {})  # the size of the codebook, whatever the stage says of itself
    if described and not (folder / SUMMARY).exists() and not (folder / CONFIG).exists():
        return RunInfo(folder, f"fit {described.get('kind')}", dict(described.get("config") or {}), {"results": fitted})
    summary, config = _read(folder / SUMMARY), _read(folder / CONFIG)
    stage, results = summary.get("stage"), summary.get("results")
    if not isinstance(stage, str) or not isinstance(results, dict):
        raise RunError(f"{folder / SUMMARY} is of another version or no summary: it has no stage and results")
    check_shape(summary, SUMMARY_SHAPE, str(folder / SUMMARY), RunError)
    return RunInfo(folder, stage, config, {**summary, "results": {**fitted, **results}})


def _read(path: Path) -> dict[str, Any]:
    return read_mapping(path, f"{path.parent} is incomplete: {path.name} is not there; finish the run, or remove it")
