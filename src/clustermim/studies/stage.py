"""The stage that runs many others: `clustermim study`."""

from __future__ import annotations

from pathlib import Path

from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.progress import log_info
from clustermim.runs import to_json
from clustermim.studies.cells import expand
from clustermim.studies.checks import check_table
from clustermim.studies.description import Study, read_study
from clustermim.studies.estimate import print_plan
from clustermim.studies.printing import print_table
from clustermim.studies.records import Recorded, make_record, read_record, read_recorded
from clustermim.studies.running import choose, run_cells, unkept
from clustermim.studies.table import make_rows


def study(
    file: str,
    out: str | None = None,
    only: str | None = None,
    shard: str | None = None,
    dry_run: bool = False,
    measure: bool = False,
    table: bool = False,
    markdown: bool = False,
    results: str | None = None,
    records: str | None = None,
) -> None:
    """Run all stages of a study that are not complete yet, then print its table; several processes may share the work.

    Args:
        file: the YAML file of the study.
        out: the folder of its runs, which studies may share; by default `runs`.
        only: run only the stage of this name, or the cell of this key, and what it needs.
        shard: `2/3` runs the second of three shares, for several machines.
        dry_run: print the commands with an estimate of their cost, instead of running them.
        measure: with --dry-run, time a few steps here and say how long all would take on this machine.
        table: print the table of what is complete, and run nothing.
        markdown: print the table as Markdown.
        results: write the record of all complete cells to this file; with --table, read it from there instead of `out`.
        records: a folder of such records: what they hold is not run again, unless what is to be run reads its folder.
    """
    description = read_study(file)
    cells, folder = expand(description), Path(out or "runs")
    check_table(description, cells)
    _check_options(only or shard, dry_run, measure, table, markdown, results, out, records)
    kept = read_recorded(Path(records)) if records else {}
    if dry_run:
        print_plan(unkept(choose(cells, only, shard), folder, kept), folder, measure)
        return
    if table:
        record = read_record(Path(results), description) if results else make_record(description, cells, folder, kept)
        print_table(description, make_rows(description, record), markdown)
        return
    run_study(description, str(folder), only, shard, results, markdown, kept)


def _check_options(
    part: str | None,
    dry_run: bool,
    measure: bool,
    table: bool,
    markdown: bool,
    results: str | None,
    out: str | None,
    records: str | None,
) -> None:
    """Refuse options that do not go together."""
    if measure and not dry_run:
        raise ConfigError("--measure is for --dry-run: a study that runs says itself how long its steps take")
    if dry_run and (table or markdown or results):
        raise ConfigError("--dry-run runs nothing and has no table: leave out --table, --markdown and --results")
    if table and part:
        raise ConfigError("--table shows all that is complete: leave out --only and --shard")
    if table and results and out is not None:
        raise ConfigError("--table reads either the record --results or the runs in --out: leave one of them out")
    if table and results and records:
        raise ConfigError("--table reads either the record --results or the folder --records: leave one of them out")


def run_study(
    study: Study,
    out: str,
    only: str | None = None,
    shard: str | None = None,
    results: str | None = None,
    markdown: bool = False,
    kept: Recorded | None = None,
) -> None:
    """Run what is not complete, keep the record, print the table; the options are those of `clustermim study`."""
    cells, folder = expand(study), Path(out)
    check_table(study, cells)  # before the work
    with process_group():
        run_cells(unkept(choose(cells, only, shard), folder, kept or {}), folder)
        if rank() > 0:
            return
    record = make_record(study, cells, folder, kept)
    if results is not None:
        write_atomic(Path(results), (to_json(record, indent=1) + "\n").encode())
    log_info(
        f"{len(record['cells'])} of {len(cells)} cells are complete in {folder}{' and the records' if kept else ''}"
    )
    if study.table.get("rows"):
        print_table(study, make_rows(study, record), markdown)
