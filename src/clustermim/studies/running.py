"""Run the cells of a study, one after the other; what is complete is not run again, nor what another process runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from time import sleep
from typing import Any

from clustermim.data import open_source
from clustermim.distributed import process_group, rank, world_size
from clustermim.errors import BusyError, ConfigError, RunError, UserError
from clustermim.factories import check_names, note_typed
from clustermim.files import is_locked
from clustermim.parsing import option_word
from clustermim.progress import log_info
from clustermim.runs import CONFIG, read_summary
from clustermim.stage_table import STAGES
from clustermim.studies.cells import Cell, expand, parameters
from clustermim.studies.comparison import read_prediction
from clustermim.studies.description import Study
from clustermim.studies.presets import open_study, override
from clustermim.studies.records import make_record, read_record, read_recorded
from clustermim.studies.result import StudyResult
from clustermim.studies.table import check_table

RECORDS = "results"  # the folder of records, by default
PATIENCE = 5.0  # seconds between two looks at what other processes have done


def run_study(
    study: Study | str | Path,
    out: str | Path = "runs",
    *,
    records: str | Path | None = None,
    only: str | None = None,
    **options: Any,
) -> StudyResult:
    """Run what is not complete of a study, and give all its results.

    Args:
        study: the name of a preset, a YAML file, or a study.
        out: the folder of its runs, which studies may share.
        records: a folder of records: what they hold is not run again, unless what is to be run reads its folder.
        only: run only the stage of this name, or the cell of this key, and what it needs.
        options: other values of options of its stages, such as `epochs=3`.

    >>> import clustermim as cm
    >>> digits = {"data": "digits/train", "test_data": "digits/test", "patch_size": 4, "epochs": 1}
    >>> len(cm.run_study("mae", "runs", **digits).rows)
    1
    """
    note_typed(*options.values())
    description, folder = override(open_study(study), **options), Path(out)
    run_cells(cells_to_run(description, folder, records, only), folder)
    return collect(description, folder, None, records)


def collect(study: Study, out: Path, results: str | None, records: str | Path | None) -> StudyResult:
    """What is complete of a study, in `out` and in records, or what the file `results` holds."""
    cells = checked_cells(study)
    record = read_record(Path(results), study) if results else make_record(study, cells, out, read_recorded(records))
    place = Path(results).parent if results else Path(records or RECORDS)
    return StudyResult(study, record, len(cells), read_prediction(place, study, cells))


def checked_cells(study: Study) -> list[Cell]:
    """All cells; mistakes in the study are found here."""
    cells = expand(study)
    check_table(study, cells)
    return cells


def run_cells(cells: Sequence[Cell], out: Path) -> None:
    """Run what is not complete; the first that fails ends the study, and all before it stay.

    What another process is at work on is left to it, and waited for in the end: several may run the same study. Under
    torchrun, where all ranks must do the same, it ends the study.
    """
    for cell in cells:
        if not cell.is_done(out):
            check_names(cell.options, f"the study's {cell.title()}", ConfigError)
    while elsewhere := _pass(cells, out):
        folder = elsewhere[0].folder(out)
        log_info(f"{len(elsewhere)} cells wait for another process, which is at work on {folder.name}")
        while is_locked(folder):
            sleep(PATIENCE)


def _pass(cells: Sequence[Cell], out: Path) -> list[Cell]:
    """Run what can be run now; the cells that another process runs, and those that need them."""
    elsewhere: list[Cell] = []
    alone = world_size() == 1
    for place, cell in enumerate(cells, 1):
        if cell.is_done(out):
            folder = cell.folder(out)
            check_data(cell, read_summary(folder), f"remove the folder {folder}, or choose another --out")
            continue
        waiting = {other.key for other in cell.needs()} & {other.key for other in elsewhere}
        if waiting or (alone and is_locked(cell.folder(out))):
            elsewhere.append(cell)
            continue
        log_info(f"cell {place} of {len(cells)}: {cell.title()} → {cell.folder(out).name}")
        try:
            run_cell(cell, out)
        except UserError as error:
            if alone and (isinstance(error, BusyError) or cell.is_done(out)):  # another process was faster
                elsewhere.append(cell)
                continue
            error.args = (f"{cell.title()}: {error}",)
            raise
    return elsewhere


def check_data(cell: Cell, summary: dict[str, Any], where: str) -> None:
    """Refuse the summary of a complete cell whose images are not those that its sources hold now."""
    for option in ("data", "test_data"):
        made_of, spec = summary.get(option) or {}, cell.options.get(option)
        now = fingerprints(spec) if isinstance(spec, str) else {}
        if any(value and made_of.get(name, value) != value for name, value in now.items()):
            raise RunError(f"{cell.title()}: it was made of other images than {spec} has now; {where}")


@cache
def fingerprints(spec: str) -> dict[str, str]:
    """Of a source, looked at once, and with --verify of all its files; none of one that is not here any more."""
    try:
        source = open_source(spec)
        return {"fingerprint": source.fingerprint, "contents": source.contents()}
    except UserError:
        return {}


def run_cell(cell: Cell, out: Path) -> None:
    """Run one cell, from where an earlier process left it."""
    folder = cell.folder(out)
    more: dict[str, Any] = {"out": str(folder)}
    if "resume" in parameters(cell.stage):
        more["resume"] = (folder / CONFIG).exists()
    with redirect_stdout(sys.stderr), process_group():  # what a stage prints is progress: a study's result is its table
        found = STAGES[cell.stage].load()(**cell.arguments(out), **more)
        if found is not None and rank() == 0:
            print(found)


def command(cell: Cell, out: Path) -> str:
    """The command that does what the cell does; options that are off, as by default, are left out."""
    words, arguments = ["clustermim", *cell.stage.split()], cell.arguments(out)
    words += [str(arguments.pop(name)) for name in STAGES[cell.stage].positional]
    for name, value in {**arguments, "out": str(cell.folder(out))}.items():
        if value is None or (value is False and parameters(cell.stage)[name].default is False):
            continue
        words.append(option_word(name))
        words += [] if value is True else ["false" if value is False else str(value)]
    return shlex.join(words)


def cells_to_run(study: Study, out: Path, records: str | Path | None, only: str | None = None) -> list[Cell]:
    """The cells without those whose results records hold, unless one that is to be run reads their folders."""
    cells, kept = checked_cells(study), read_recorded(records)
    if only is not None:
        named = [cell for cell in cells if only == cell.name or cell.key.startswith(only)]
        if not named:
            names = ", ".join(dict.fromkeys(cell.name for cell in cells))
            raise ConfigError(f"--only {only} is neither a name nor the key of a cell; there are: {names}")
        needed = {cell.key for last in named for cell in last.ancestors()}
        cells = [cell for cell in cells if cell.key in needed]
    wanted = {cell.key for cell in cells if cell.key not in kept}
    for cell in reversed(cells):  # what a cell needs stands before it
        if cell.key in wanted and not cell.is_done(out):
            wanted |= {other.key for other in cell.needs()}
        elif cell.key not in wanted and not cell.is_done(out):
            check_data(cell, kept[cell.key], "leave out --records, or its record there")
    return [cell for cell in cells if cell.key in wanted]
