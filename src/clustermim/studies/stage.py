"""The stage that runs many others: `clustermim study`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from clustermim.distributed import rank, ranks
from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.progress import say
from clustermim.runs import to_json
from clustermim.studies.cells import expand
from clustermim.studies.description import Study, read_study
from clustermim.studies.running import choose, command, run_cells
from clustermim.studies.table import Estimate, Row, columns, differences, make_record, make_rows, read_record


def study(
    file: str,
    out: str | None = None,
    only: str | None = None,
    shard: str | None = None,
    dry_run: bool = False,
    table: bool = False,
    results: str | None = None,
) -> None:
    """Run all stages of a study that are not complete yet, then print its table.

    Args:
        file: the YAML file of the study.
        out: the folder of its runs, which studies may share; by default `runs`.
        only: run only the stage of this name, or the cell of this key, and what it needs.
        shard: `2/3` runs the second of three shares, for several machines.
        dry_run: print the commands instead of running them.
        table: print the table of what is complete, and run nothing.
        results: write the record of all complete cells to this file; with --table, read it from there.
    """
    plan = read_study(file)
    cells, folder = expand(plan), Path(out or "runs")
    if dry_run:
        for cell in choose(cells, only, shard):
            print(f"# {cell.title()}, {'complete' if cell.is_done(folder) else 'to do'}\n{command(cell, folder)}")
        return
    if table:
        record = read_record(Path(results), plan) if results and out is None else make_record(plan, cells, folder)
        print_table(plan, make_rows(plan, record))
        return
    list(differences(plan, make_rows(plan, {"cells": []})))  # a table that cannot be made is refused before the work
    with ranks():
        run_cells(choose(cells, only, shard), folder)
        if rank() > 0:
            return
    record = make_record(plan, cells, folder)
    if results is not None:
        write_atomic(Path(results), (to_json(record, indent=1) + "\n").encode())
    say(f"{len(record['cells'])} of {len(cells)} cells are complete in {folder}")
    print_table(plan, make_rows(plan, record))


def print_table(study: Study, rows: list[Row]) -> None:
    """Rows, the differences between them, and beside each number what the paper prints."""
    if not rows:
        raise ConfigError(f"the study {study.name} describes no table")
    paper = study.table.get("paper") or {}
    table = Table(title=study.title, title_justify="left")
    table.add_column("")
    for name in columns(study):
        table.add_column(name, justify="right")
        if any(name in values for values in paper.values()):
            table.add_column(f"{name}, paper", justify="right", style="dim")
    for row in rows:
        cells = [row.name]
        for name in columns(study):
            cells.append(number(row.estimate(name)))
            if any(name in values for values in paper.values()):
                cells.append(str(paper.get(row.name, {}).get(name, "")))
        table.add_row(*cells)
    console = Console(highlight=False, width=max(Console().width, 100))
    console.print(table)
    for more, less, found in differences(study, rows):
        for name, estimate in found.items():
            interval = estimate.interval()
            around = f", 95 % interval {interval[0]:+.2f} … {interval[1]:+.2f}" if interval else ""
            console.print(f"{name}: {more} − {less} = {estimate.mean:+.2f}{around} ({estimate.seeds} seeds)")


def number(estimate: Estimate | None) -> str:
    """Mean ± standard deviation, and nothing for what was not measured."""
    if estimate is None:
        return ""
    spread = "" if estimate.spread is None else f" ± {estimate.spread:.2f}"
    return f"{estimate.mean:.2f}{spread}"
