"""`clustermim study` and `clustermim run`: many stages from one description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clustermim.distributed import rank
from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.options import flat, flattened
from clustermim.progress import log_info
from clustermim.runs import to_json
from clustermim.studies.cells import Cell
from clustermim.studies.description import Study, read_study
from clustermim.studies.prediction import Prediction, predict_study
from clustermim.studies.presets import Overrides, open_study, override, presets
from clustermim.studies.result import StudyResult
from clustermim.studies.running import RECORDS, cells_to_run, collect, command, run_study


@flat
def study(
    file: str | None = None,
    overrides: Overrides = Overrides(),
    out: str | None = None,
    only: str | None = None,
    dry_run: bool = False,
    table: bool = False,
    results: str | None = None,
    records: str | None = None,
    predict: bool = False,
    list: bool = False,
) -> StudyResult | Prediction | None:
    """Run all stages of a study that are not complete yet, then print its table; several processes may share the work.

    A preset is a study that comes with the package: a method from data to accuracy. Other values of options hold where
    the study gives the option, or else in every stage that has it.

    Args:
        file: the YAML file of the study, or the name of a preset.
        out: the folder of its runs, which studies may share; by default `runs`.
        only: run only the stage of this name, or the cell of this key, and what it needs.
        dry_run: print the commands instead of running them.
        table: print the table of what is complete, and run nothing.
        results: write the record of all complete cells to this file; with --table, read it from there instead of `out`.
        records: a folder of such records: what they hold is not run again, unless what is to be run reads its folder.
        predict: only fit and score the tokenizers, and write what each score predicts to `predictions` in the folder of
            records, by default `results`; refused when a training with one of them has begun. The table compares.
        list: print the presets, and run nothing; so does a call without a file.
    """
    if list or file is None:
        for name, path in presets().items():
            print(f"{name:<20}{' '.join(read_study(path).about.split())}")
        return None
    if predict and (dry_run or table or results or only):
        raise ConfigError("--predict writes its own record: leave out --dry-run, --table, --results and --only")
    if dry_run and (table or results):
        raise ConfigError("--dry-run runs nothing and has no table: leave out --table and --results")
    if table and results and (out or records):
        raise ConfigError("--table reads the record --results, or --out and --records: leave one of them out")
    description, folder = override(open_study(file), **flattened({"": overrides})), Path(out or "runs")
    if dry_run:
        _print_plan(cells_to_run(description, folder, records, only), folder)
        return None
    if overrides.data and not overrides.test_data:
        log_info("no --test-data: stages that need test images are left out")
    if predict:
        return predict_study(description, folder, records or RECORDS)
    if not table:
        return _run(description, folder, results, records, only)
    found = collect(description, folder, results, records)
    if not found.rows:
        raise ConfigError(f"the study {description.name} describes no table")
    return found


def _print_plan(cells: Sequence[Cell], out: Path) -> None:
    """The command of every cell, and how many are complete."""
    done = [cell.is_done(out) for cell in cells]
    for cell, complete in zip(cells, done, strict=True):
        print(f"# {cell.title()}, {'complete' if complete else 'to do'}\n{command(cell, out)}")
    print(f"# total: {len(cells)} cells, {sum(done)} complete")


def _run(study: Study, out: Path, results: str | None, records: str | None, only: str | None) -> StudyResult:
    """Run what is not complete, keep the record, and say what can follow."""
    found = run_study(study, out, records=records, only=only)
    if results is not None and rank() == 0:
        write_atomic(Path(results), (to_json(found.to_dict(), indent=1) + "\n").encode())
    log_info(f"{len(found.record['cells'])} of {found.total} cells are complete")
    log_info(f"next: clustermim report {out} --out report.html")
    return found
