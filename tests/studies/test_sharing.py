"""Several processes at work on one study: each cell is made by one of them, and the others wait for it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from clustermim.cli import main
from clustermim.files import locked
from clustermim.studies import expand, read_study, running
from clustermim.studies.cells import Cell

DATA = "textures:?images=96&grid=4&patch=4"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A file of two fits with a score each."""
    options = {"data": DATA, "patch_size": 4}
    stages = [
        {"name": "tokens", "stage": "fit kmeans", "options": options, "grid": {"k": [4, 8]}},
        {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": DATA}},
    ]
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({"title": "small", "stages": stages}))
    return path


def done(cells: list[Cell], out: Path) -> list[bool]:
    return [cell.is_done(out) for cell in cells]


def test_what_another_process_makes_is_waited_for(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, out, other = expand(read_study(study)), tmp_path / "runs", ExitStack()
    assert [cell.title() for cell in cells] == [
        "tokens (k 4)", "tokens (k 8)", "score (k 4)", "score (k 8)"
    ]  # fmt: skip
    other.enter_context(locked(cells[0].folder(out)))

    def wait(seconds: float) -> None:
        assert done(cells, out) == [False, True, False, True]  # all that can be done without it
        other.close()  # it died: the cell is to be made here after all

    monkeypatch.setattr(running, "sleep", wait)
    assert main(["study", str(study), "--out", str(out)]) == 0
    assert all(done(cells, out))
    reported = " ".join(capsys.readouterr().err.split())
    assert f"2 cells wait for another process, which is at work on {cells[0].folder(out).name}" in reported


def test_a_cell_that_another_process_finished_meanwhile(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, out, run_cell = expand(read_study(study)), tmp_path / "runs", running.run_cell

    def run_twice(cell: Cell, out: Path) -> None:
        run_cell(cell, out)
        run_cell(cell, out)  # finds it complete

    monkeypatch.setattr(running, "run_cell", run_twice)
    assert main(["study", str(study), "--out", str(out)]) == 0
    assert all(done(cells, out))


@pytest.mark.slow
def test_two_processes_share_a_study(study: Path, tmp_path: Path) -> None:
    cells, out = expand(read_study(study)), tmp_path / "runs"
    program = [sys.executable, str(Path(__file__).parents[1] / "launch.py"), "study", str(study), "--out", str(out)]
    both = [subprocess.Popen(program, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    reported = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], reported
    assert sorted(path.name for path in out.iterdir()) == sorted(cell.folder(out).name for cell in cells)
