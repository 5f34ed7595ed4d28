"""The stages that run many others: `clustermim study`, `clustermim run`, and `clustermim results`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.options import flat, flattened
from clustermim.progress import log_info
from clustermim.runs import to_json
from clustermim.studies.cells import Cell
from clustermim.studies.document import document
from clustermim.studies.estimate import estimate, total
from clustermim.studies.presets import Overrides, open_study, override, presets
from clustermim.studies.result import StudyResult, split
from clustermim.studies.running import cells_to_run, collect, command, run_study


def study(
    file: str,
    out: str | None = None,
    only: str | None = None,
    shard: str | None = None,
    dry_run: bool = False,
    table: bool = False,
    markdown: bool = False,
    results: str | None = None,
    records: str | None = None,
) -> None:
    """Run all stages of a study that are not complete yet, then print its table; several processes may share the work.

    Args:
        file: the YAML file of the study, or the name of a preset.
        out: the folder of its runs, which studies may share; by default `runs`.
        only: run only the stage of this name, or the cell of this key, and what it needs.
        shard: `2/3` runs the second of three shares, for several machines.
        dry_run: print the commands with an estimate of their cost, instead of running them.
        table: print the table of what is complete, and run nothing.
        markdown: print the table as Markdown.
        results: write the record of all complete cells to this file; with --table, read it from there instead of `out`.
        records: a folder of such records: what they hold is not run again, unless what is to be run reads its folder.
    """
    _check_options(only or shard, dry_run, table, markdown, results, out if out is not None else records)
    description, folder = open_study(file), Path(out or "runs")
    if dry_run:
        _print_plan(cells_to_run(description, folder, only, shard, records), folder)
        return
    if table:
        _print_result(collect(description, folder, records, results), markdown)
        return
    with process_group():
        found = run_study(description, folder, only=only, shard=shard, records=records)
        if rank() == 0:
            _finish(found, folder, results, markdown, records)


@flat
def run(
    preset: str | None = None,
    overrides: Overrides = Overrides(),
    out: str = "runs",
    list: bool = False,
    dry_run: bool = False,
) -> None:
    """Run a method from data to accuracy: its tokenizer, its pretraining and its evaluation.

    A preset is a study that comes with the package; whatever is complete is not run again. Other values of options hold
    where the preset gives the option, or else in every stage that has it.

    Args:
        preset: the name of a preset, or a YAML file like one.
        out: the folder of its runs, which several methods may share.
        list: print the presets, and run nothing.
        dry_run: print the commands with an estimate of their cost, instead of running them.
    """
    if list:
        print("\n".join(f"{name:<20}{' '.join(found.about.split())}" for name, found in presets().items()))
        return
    if preset is None:
        raise ConfigError("run needs the name of a preset; clustermim run --list shows them")
    study, folder = override(open_study(preset), **flattened({"": overrides})), Path(out)
    if dry_run:
        _print_plan(cells_to_run(study, folder), folder)
        return
    if overrides.data and not overrides.test_data:
        log_info("no --test-data: stages that need test images are left out")
    with process_group():
        found = run_study(study, folder)
        if rank() == 0:
            _finish(found, folder)


def results(studies: str = "studies", records: str = "results", out: str = "docs/results.md") -> None:
    """Write the tables of all kept records into one Markdown document.

    Args:
        studies: the folder of study files.
        records: the folder of what `clustermim study --results` wrote, files of the same names.
        out: the document to write.
    """
    write_atomic(Path(out), document(Path(studies), Path(records)).encode())
    print(f"wrote {out}")


def _check_options(
    part: str | None,
    dry_run: bool,
    table: bool,
    markdown: bool,
    results: str | None,
    runs: str | None,
) -> None:
    """Refuse options that do not go together."""
    if dry_run and (table or markdown or results):
        raise ConfigError("--dry-run runs nothing and has no table: leave out --table, --markdown and --results")
    if table and part:
        raise ConfigError("--table shows all that is complete: leave out --only and --shard")
    if table and results and runs:
        raise ConfigError("--table reads the record --results, or --out and --records: leave one of them out")


def _print_plan(cells: Sequence[Cell], out: Path) -> None:
    """The command of every cell with its cost, and the total of those that are not complete."""
    to_do = [cell for cell in cells if not cell.is_done(out)]
    for cell in cells:
        print(f"# {cell.title()}, {'to do' if cell in to_do else 'complete'}\n{command(cell, out)}")
        if cell in to_do:
            print(f"#   {estimate(cell).text}")
    print(total(cells, to_do))


def _finish(
    found: StudyResult, out: Path, results: str | None = None, markdown: bool = False, records: str | None = None
) -> None:
    """Keep the record, print the table, and say what can follow."""
    if results is not None:
        write_atomic(Path(results), (to_json(found.to_dict(), indent=1) + "\n").encode())
    where = f"{out} and the records" if records else str(out)
    log_info(f"{len(found.record['cells'])} of {found.total} cells are complete in {where}")
    if found.rows:
        _print_result(found, markdown)
    log_info(f"next: clustermim report {out} --out report.html")


def _print_result(found: StudyResult, markdown: bool) -> None:
    """The tables, on a terminal no wider than it is: a file has room for all columns."""
    if not found.rows:
        raise ConfigError(f"the study {found.study.name} describes no table")
    if markdown:
        print(found.markdown())
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    print("\n\n".join(str(part) for table in found.tables() for part in split(table, width)))
