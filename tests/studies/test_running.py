"""Studies run: shares, exact continuation, records and tables, and cells that fail."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from toy_study import cells_of, described, stages, write

from clustermim.cli import main
from clustermim.errors import ConfigError, MissingExtraError
from clustermim.parsing import find, options_of
from clustermim.stage_table import STAGES
from clustermim.stages.pretrain import pretrain
from clustermim.studies import expand, read_study, running
from clustermim.studies.running import cells_to_run, command, run_cells


def test_only_takes_a_name_or_a_key_and_what_it_needs(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, described()))

    def names(only: str) -> list[str]:
        return [cell.name for cell in cells_to_run(study, tmp_path, None, only)]

    assert names("mae") == ["mae", "mae"]
    assert names(expand(study)[-1].key) == ["tokens", "clusters", "knn"]
    with pytest.raises(ConfigError, match="--only nothing is neither"):
        names("nothing")


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


def test_complete_cells_of_other_images_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.npz"
    generator = np.random.default_rng(0)
    np.savez(data, images=generator.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    options = {"data": f"npz:{data}", "patch_size": 4, "k": 4}
    path = write(tmp_path, stages({"name": "tokens", "stage": "fit kmeans", "options": options}))
    words = ["study", str(path), "--out", str(tmp_path / "runs")]
    assert main(words) == 0
    running.fingerprints.cache_clear()
    assert main(words) == 0
    np.savez(data, images=generator.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    running.fingerprints.cache_clear()
    assert main(words) == 2
    assert "was made of other images than npz:" in capsys.readouterr().err
    data.unlink()
    running.fingerprints.cache_clear()
    assert main(words) == 0  # what cannot be looked at is taken as it is


def test_a_moved_study_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = described(stages=[entry for entry in described()["stages"] if entry["name"] in ("tokens", "clusters")])
    study["stages"][0]["grid"], study["stages"][1]["grid"] = {"k": [4]}, {"seed": [0]}
    cells = cells_of(tmp_path, study | {"table": {}})
    monkeypatch.chdir(tmp_path)
    here, there = Path("here"), tmp_path / "there"
    run_cells(cells[:1], here)
    with pytest.raises(SystemExit):
        pretrain(**cells[1].arguments(here), out=str(cells[1].folder(here)), stop_after=1)
    here.rename(there)
    run_cells(cells, there)
    assert all(cell.is_done(there) for cell in cells)


def test_printed_commands_give_the_options_of_their_cells() -> None:
    """One cell of each pattern of switches, of all studies."""
    patterns = {}
    for path in sorted((Path(__file__).parents[2] / "studies").glob("*.yaml")):
        for cell in expand(read_study(path)):
            switches = tuple((name, repr(value)) for name, value in cell.options.items() if not value or value is True)
            patterns[cell.stage, switches] = cell
    assert len(patterns) > 10
    for cell in patterns.values():
        words = shlex.split(command(cell, Path("runs")))[1:]
        found = options_of(*find(STAGES, words))
        assert found == found | cell.arguments(Path("runs"))


def test_a_failing_cell_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = stages({"name": "a", "stage": "fit kmeans", "options": {"data": "folder:/nowhere/at/all"}})
    study["table"] = {"rows": {"x": "a"}, "columns": {"k": {"stage": "a", "value": "vocab_size"}}}
    assert main(["study", str(write(tmp_path, study)), "--out", str(tmp_path / "runs")]) == 2
    assert "error: a: " in capsys.readouterr().err


def test_a_missing_extra_is_told_with_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_of(tmp_path, described())

    def lacking(*_: object) -> None:
        raise MissingExtraError("hf:some/model", "hf")

    monkeypatch.setattr(running, "run_cell", lacking)
    with pytest.raises(MissingExtraError, match=r"^tokens \(k 4\): hf:some/model needs .* 'clustermim\[hf\]'$"):
        run_cells(cells, tmp_path / "runs")
