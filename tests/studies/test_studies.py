"""Studies: cells from grids, exact continuation, shares, records and tables, and what a wrong file gets."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from clustermim.cli import main
from clustermim.errors import ConfigError
from clustermim.metrics.estimates import Estimate
from clustermim.studies import expand, read_study
from clustermim.studies.cells import Cell, Reference, replaced
from clustermim.studies.running import choose, command
from clustermim.studies.table import differences, make_rows

DATA = "textures:?images=96&grid=4&patch=4"
SHORT = {"data": DATA, "patch_size": 4, "epochs": 2, "batch_size": 32, "device": "cpu"}


def described(**changes: Any) -> dict[str, Any]:
    """A small study of everything."""
    study: dict[str, Any] = {
        "title": "small",
        "parts": {"recipe": dict(SHORT), "measure": {"data": DATA, "test_data": DATA}},
        "stages": [
            {
                "name": "tokens",
                "stage": "fit kmeans",
                "options": {"data": DATA, "patch_size": 4},
                "grid": {"k": [4, 8]},
            },
            {"name": "score", "stage": "tcas", "options": {"tokenizer": "@tokens", "data": DATA}},
            {
                "name": "mae",
                "stage": "pretrain",
                "use": "recipe",
                "options": {"target": "pixels"},
                "grid": {"seed": [0, 1]},
            },
            {
                "name": "clusters",
                "stage": "pretrain",
                "use": ["recipe"],
                "options": {"tokenizer": "@tokens"},
                "grid": {"seed": [0, 1]},
            },
            {
                "name": "knn",
                "stage": "knn",
                "use": "measure",
                "options": {"k": 3},
                "grid": {"run": ["@mae", "@clusters"]},
            },
        ],
        "table": {
            "rows": {"MAE": "mae", "few": {"clusters": {"k": 4}}, "more": {"clusters": {"k": 8}}},
            "columns": {
                "kNN": {"stage": "knn", "value": "avg.accuracy", "percent": True},
                "loss": {"value": "loss"},
            },
            "differences": [["more", "MAE"]],
            "paper": {"MAE": {"kNN": 12.3}},
        },
    }
    return study | changes


def write(folder: Path, study: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def cells_of(folder: Path, study: Any) -> list[Cell]:
    return expand(read_study(write(folder, study)))


def test_cells_are_the_points_of_grids_joined_on_equal_axes(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, described())
    places = {
        name: [cell.axes for cell in cells if cell.name == name] for name in ("tokens", "score", "clusters", "knn")
    }
    assert places["tokens"] == [{"k": 4}, {"k": 8}]
    assert places["score"] == [{"k": 4}, {"k": 8}]
    assert len(places["clusters"]) == 4
    assert places["clusters"][1] == {"seed": 0, "k": 8}
    # knn's own option k is 3 in every cell; the axis k belongs to the tokenizers
    assert [place["run"] for place in places["knn"]] == ["mae"] * 2 + ["clusters"] * 4
    order = [cell.key for cell in cells]
    assert all(order.index(needed.key) < order.index(cell.key) for cell in cells for needed in cell.needs())


def test_seeds_of_a_tokenizer_and_of_the_pretraining_on_it_are_paired(tmp_path: Path) -> None:
    study = described()
    study["stages"][0]["grid"] = {"seed": [0, 1]}
    clusters = [cell for cell in cells_of(tmp_path, study) if cell.name == "clusters"]
    assert [(cell.options["seed"], cell.options["tokenizer"].cell.options["seed"]) for cell in clusters] == [
        (0, 0),
        (1, 1),
    ]


def test_a_key_depends_on_what_matters_only(tmp_path: Path) -> None:
    def keys(**options: Any) -> dict[str, str]:
        study = described()
        study["stages"][2]["options"] |= options
        return {cell.title(): cell.key for cell in cells_of(tmp_path, study)}

    plain = keys()
    assert len(set(plain.values())) == len(plain)
    assert keys(mask_ratio=0.75, clip=None, normalize_pixels=False) == plain  # the defaults, written out
    for change in ({"mask_ratio": 0.5}, {"normalize_pixels": True}, {"warmup_epochs": 0}):
        changed = keys(**change)
        assert {title for title in plain if plain[title] != changed[title]} == {
            "mae (seed 0)", "mae (seed 1)", "knn (run mae, seed 0)", "knn (run mae, seed 1)"
        }  # fmt: skip


def test_a_change_upstream_changes_all_that_follows(tmp_path: Path) -> None:
    study = described()
    before = {cell.title(): cell.key for cell in cells_of(tmp_path, study)}
    study["stages"][0]["options"]["iterations"] = 3
    after = {cell.title(): cell.key for cell in cells_of(tmp_path, study)}
    assert {title for title in before if before[title] == after[title]} == {
        "mae (seed 0)", "mae (seed 1)", "knn (run mae, seed 0)", "knn (run mae, seed 1)"
    }  # fmt: skip


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


def test_rows_pair_seeds(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, described()))
    cells = []
    for run, accuracy in (("mae", 0.25), ("clusters", 0.5)):
        for seed in (0, 1, 2):
            axes: dict[str, Any] = {"seed": seed} | ({"k": 8} if run == "clusters" else {})
            cells.append(
                {
                    "name": run,
                    "stage": "pretrain",
                    "key": f"{run}{seed}",
                    "axes": axes,
                    "needs": [],
                    "options": {},
                    "results": {"loss": 1.5},
                }
            )
            results = {"avg": {"accuracy": accuracy + 0.01 * seed + (0.02 if (run, seed) == ("mae", 2) else 0)}}
            cells.append({"name": "knn", "stage": "knn", "key": f"knn{run}{seed}", "axes": axes, "needs": [f"{run}{seed}"], "options": {}, "results": results})  # fmt: skip # noqa: E501
    rows = make_rows(study, {"cells": cells})
    assert [row.estimate("kNN") is not None for row in rows] == [True, False, True]
    assert rows[0].estimate("loss") == Estimate(1.5, 0.0, 3)
    ((more, less, found),) = differences(study, rows)
    assert (more, less) == ("more", "MAE")
    assert found["kNN"].mean == pytest.approx((25 + 25 + 23) / 3)
    # an independent computation of Student's interval: t(0.975, 2) = 4.302653
    interval = Estimate.of([25.0, 25.0, 23.0]).interval()
    assert interval is not None
    assert interval[1] - interval[0] == pytest.approx(2 * 4.302653 * (4 / 3) ** 0.5 / 3**0.5, rel=1e-6)
    assert Estimate.of([1.0]).interval() is None


def stages(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"stages": list(entries)}


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ("[1, 2", "is not YAML"),
        ({"title": "x"}, "has no list of stages"),
        ({"stage": [], "stages": []}, "has a key 'stage'; did you mean stages?"),
        (stages({"name": "a", "stage": "fit kmeen"}), "there is no stage 'fit kmeen'; did you mean fit kmeans?"),
        (stages({"name": "a"}), "has no stage"),
        (stages({"name": "a", "stage": "pretrain", "use": "x"}), "uses the part 'x', which is not there"),
        (stages({"name": "a", "stage": "pretrain", "options": {"data": "d", "epoch": 2}}), "did you mean epochs?"),
        (stages({"name": "a", "stage": "pretrain", "options": {"data": "d", "epochs": "many"}}), "expected int"),
        (stages({"name": "a", "stage": "pretrain", "options": {"data": "d", "out": "x"}}), "for the study to decide"),
        (stages({"name": "a", "stage": "pretrain", "options": {}}), "data"),
        (stages({"name": "a", "stage": "pretrain", "grid": {"seed": 3}}), "needs a list of values"),
        (stages({"name": "a", "stage": "pretrain", "grid": {"seed": [1, 1]}}), "has a value twice"),
        (stages(*[{"name": "a", "stage": "pretrain", "options": {"data": "d"}}] * 2), "two stages of the name 'a'"),
        (
            stages({"name": "a", "stage": "tcas", "options": {"tokenizer": "@b", "data": "d"}}),
            "needs @b, which is not there",
        ),
        (
            stages(
                {"name": "a", "stage": "tcas", "options": {"tokenizer": "@b", "data": "d"}},
                {"name": "b", "stage": "tcas", "options": {"tokenizer": "@a", "data": "d"}},
            ),
            "goes in a circle: a needs b needs a",
        ),
        (described(table={"rows": {"x": "may"}, "columns": {}}), "names a stage 'may'; did you mean mae?"),
        (described(table={"rows": {"x": "mae"}, "columns": {"y": {"stage": "knn"}}}), "needs a value"),
        (described(table={"row": {}}), "has a key 'row'; did you mean rows?"),
        (described(table=described()["table"] | {"differences": [["MAE", "few", "x"]]}), "is not a pair of rows"),
        (described(table=described()["table"] | {"differences": [["MAE", "x"]]}), "compares 'x', which is not a row"),
        (described(table={}), "describes no table"),
    ],
    ids=str,
)
def test_what_a_wrong_study_gets(study: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(study if isinstance(study, str) else yaml.safe_dump(study))
    assert main(["study", str(path), "--out", str(tmp_path / "runs"), "--table"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "3/2"], "is not like 2/3"),
        (["--shard", "x"], "is not like 2/3"),
        (["--only", "nobody"], "neither a name nor the key"),
        (["--table", "--results", "nowhere.json"], "there are no results nowhere.json"),
    ],
)
def test_wrong_options(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, described())
    assert main(["study", str(path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_study_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "nowhere.yaml"]) == 2
    assert "there is no study nowhere.yaml" in capsys.readouterr().err


def test_a_failing_cell_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = stages({"name": "a", "stage": "fit kmeans", "options": {"data": "folder:/nowhere/at/all"}})
    study["table"] = {"rows": {"x": "a"}, "columns": {"k": {"stage": "a", "value": "vocab_size"}}}
    assert main(["study", str(write(tmp_path, study)), "--out", str(tmp_path / "runs")]) == 2
    assert "error: a: " in capsys.readouterr().err


def test_references_keep_what_follows_and_stand_in_lists(tmp_path: Path) -> None:
    stages = [
        {"name": "mae", "stage": "pretrain", "options": {"data": DATA, "target": "pixels"}, "grid": {"seed": [0, 1]}},
        {"name": "probe", "stage": "probe", "options": {"run": "@mae?layer=2", "data": DATA, "test_data": DATA}},
        {"name": "plain", "stage": "probe", "options": {"run": "@mae", "data": DATA, "test_data": DATA}},
    ]
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"stages": stages}))
    cells = {(cell.name, cell.axes["seed"]): cell for cell in expand(read_study(path))}
    first = cells["probe", 1]
    assert first.arguments(Path("out"))["run"] == f"{cells['mae', 1].folder(Path('out'))}?layer=2"
    assert first.needs() == [cells["mae", 1]]
    assert first.key not in (cells["plain", 1].key, cells["probe", 0].key)
    mae = cells["mae", 0]
    listed = replaced({"teacher": [Reference(mae, "?layer=1"), Reference(mae)], "k": 3}, Reference.text)
    assert listed == {"teacher": ["@mae?layer=1", "@mae"], "k": 3}


def test_a_column_that_not_every_row_has(tmp_path: Path) -> None:
    table = {"rows": {"one": "tokens"}, "columns": {"psnr": {"value": "psnr", "optional": True}}}
    cell = {"name": "tokens", "stage": "fit kmeans", "key": "a", "axes": {}, "needs": [], "options": {}, "results": {}}
    study = read_study(write(tmp_path, described(table=table)))
    (row,) = make_rows(study, {"cells": [cell]})
    assert row.estimate("psnr") is None
    study.table["columns"]["psnr"].pop("optional")
    with pytest.raises(ConfigError, match="have no 'psnr'"):
        make_rows(study, {"cells": [cell]})
