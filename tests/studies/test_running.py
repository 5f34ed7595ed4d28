"""Studies run: shares, exact continuation, records and tables, and cells that fail."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_study import cells_of, described, stages, write

from clustermim.cli import main
from clustermim.errors import ConfigError
from clustermim.studies import expand, read_study
from clustermim.studies.running import choose, command


def test_shares_cover_everything_and_run_long_cells_once(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, described())
    for parts in (1, 2, 3, 7, 50):
        shares = [choose(cells, None, f"{part}/{parts}") for part in range(1, parts + 1)]
        assert {cell.key for share in shares for cell in share} == {cell.key for cell in cells}
        long = [cell.key for share in shares for cell in share if cell.is_long()]
        assert len(long) == len(set(long))


def test_only_takes_a_name_or_a_key_and_what_it_needs(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, described())
    assert [cell.name for cell in choose(cells, "mae", None)] == ["mae", "mae"]
    last = cells[-1]
    assert [cell.name for cell in choose(cells, last.key, None)] == ["tokens", "clusters", "knn"]
    with pytest.raises(ConfigError, match="--only nothing is neither"):
        choose(cells, "nothing", None)


@pytest.mark.slow
def test_a_study_runs_its_commands_and_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out, kept = write(tmp_path, described()), tmp_path / "runs", tmp_path / "kept.json"
    cells = expand(read_study(path))
    assert main(["study", str(path), "--out", str(out), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert not out.exists()
    assert printed.count("clustermim pretrain") == 6
    # the printed commands do what the study does: run one of them by hand
    first = command(cells[0], out).split()[1:]
    assert main([word.strip("'") for word in first]) == 0
    before = (cells[0].folder(out) / "summary.json").read_bytes()
    assert main(["study", str(path), "--out", str(out), "--results", str(kept)]) == 0
    printed = capsys.readouterr().out
    assert (cells[0].folder(out) / "summary.json").read_bytes() == before  # found, not made again
    assert all(cell.is_done(out) for cell in cells)
    record = json.loads(kept.read_text())
    assert len(record["cells"]) == len(cells)
    assert all(
        {"results", "seed", "seconds", "git_commit", "versions", "data"} <= cell.keys() for cell in record["cells"]
    )
    table = printed[printed.index("small") :]
    assert "12.3" in table
    assert "more − MAE" in table
    for words in (["--out", str(out)], ["--results", str(kept)]):
        assert main(["study", str(path), "--table", *words]) == 0
        assert capsys.readouterr().out.strip() == table.strip()


@pytest.mark.slow
def test_killed_three_times_it_gives_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = described(stages=described()["stages"][2:3] + described()["stages"][4:])
    study["stages"][1]["grid"] = {"run": ["@mae"]}
    study["table"] = {"rows": {"MAE": "mae"}, "columns": described()["table"]["columns"]}
    path = write(tmp_path, study)
    program = [sys.executable, str(Path(__file__).parents[1] / "launch.py"), "study", str(path), "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    rng = random.Random(0)
    for _ in range(3):
        child = subprocess.Popen([*program, str(tmp_path / "killed")], env=environment, stderr=subprocess.DEVNULL)
        started = time.monotonic()
        while child.poll() is None and time.monotonic() - started < 60 and not (tmp_path / "killed").exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1.5))
        child.send_signal(signal.SIGKILL)
        child.wait()
    tables = []
    for name in ("killed", "whole"):
        assert main(["study", str(path), "--out", str(tmp_path / name)]) == 0
        capsys.readouterr()
        assert main(["study", str(path), "--out", str(tmp_path / name), "--table"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    for cell in expand(read_study(path)):
        for weights in cell.folder(tmp_path / "whole").glob("encoder.safetensors"):
            assert weights.read_bytes() == (cell.folder(tmp_path / "killed") / weights.name).read_bytes()


def test_a_failing_cell_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = stages({"name": "a", "stage": "fit kmeans", "options": {"data": "folder:/nowhere/at/all"}})
    study["table"] = {"rows": {"x": "a"}, "columns": {"k": {"stage": "a", "value": "vocab_size"}}}
    assert main(["study", str(write(tmp_path, study)), "--out", str(tmp_path / "runs")]) == 2
    assert "error: a: " in capsys.readouterr().err
