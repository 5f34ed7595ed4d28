"""Where runs come from: only what their files say, and commands that do what they look like."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_runs import TEXTURES, fit, measured, pretrained

from clustermim.cli import main
from clustermim.reports.collect import RunInfo, collect
from clustermim.reports.provenance import Origin, command, origins
from clustermim.reports.records import NamedRun, make_records
from clustermim.runs import read_summary


def run(config: dict[str, Any], stage: str = "pretrain", folder: str = "out", **summary: Any) -> RunInfo:
    return RunInfo(Path(folder), stage, config, {"results": {}, **summary})


def words(*given: Any, **options: Any) -> list[str]:
    return shlex.split(command(*given, **options) or "")


@pytest.mark.parametrize("folder", ["km", 'it\'s a "$(touch x)" `name`; &'])
def test_the_command_makes_the_same_again(folder: str, tmp_path: Path) -> None:
    made = fit(tmp_path / folder, 5, seed=3, space="pixel-norm")
    (found,) = collect([str(made)])[0]
    again = words(found)
    assert again[:3] == ["clustermim", "fit", "kmeans"]
    assert "--max-patches" not in again  # a default
    place = again.index("--out") + 1
    assert again[place] == str(made)
    again[place] = str(tmp_path / "again")
    assert main(again[1:]) == 0
    for name in ("config.yaml", "tokenizer.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (made / name).read_bytes()


def test_options_are_written_as_the_command_line_has_them() -> None:
    config = {"data": "digits", "target": "pixels", "normalize_pixels": True, "mask_ratio": 0.6, "epochs": 20}
    assert words(run(config)) == [
        "clustermim", "pretrain", "--data", "digits", "--target", "pixels", "--mask-ratio", "0.6", "--normalize-pixels",
        "--out", "out",
    ]  # fmt: skip
    probe = {"run": "r", "data": "a", "test_data": "b", "protocol": "logistic regression, L-BFGS", "seed": 0}
    assert words(run(probe, "probe")) == shlex.split("clustermim probe r --data a --test-data b --out out")
    assert words(run({"run": "r", "data": "a b", "stranger": "x"}, "knn")) == []  # on which images?
    assert words(run({"run": "r", "data": "a b", "test_data": "c", "stranger": "x"}, "knn"))[4] == "a b"


@pytest.mark.parametrize("bad", ["a\nrm -rf x", "a\x1b[201~rm", "a\u202eb", "a\u2028b", "\udcff"])
def test_what_would_do_something_else_when_pasted_is_no_command(bad: str) -> None:
    assert command(run({"data": bad})) is None
    assert command(run({"data": "digits"}, folder=bad)) is None


def test_what_names_code_is_shown_for_ones_own_runs_only() -> None:
    found = run({"data": "digits", "tokenizer": "module:os:getcwd", "target": "tokens"})
    assert command(found) is None
    assert "module:os:getcwd" in words(found, trust_runs=True)


def test_no_command_of_what_is_none() -> None:
    assert command(run({}, "pretrain")) is None
    assert command(run({"data": "digits"}, "fit nothing")) is None
    assert command(run({"data": "digits"}, "knn")) is None  # of which encoder?


def test_a_run_is_described_by_its_own_files(tmp_path: Path) -> None:
    made = pretrained(tmp_path / "run", fit(tmp_path / "km", 6), model="micro", epochs=3)
    summary = read_summary(made)
    summary["results"]["parameters"] = 830_000
    (made / "summary.json").write_text(json.dumps(summary))
    measured(made / "probe", made)
    records = make_records(collect([str(tmp_path)])[0])
    rows = {row.title: row for row in origins(records.runs)}
    assert list(rows) == ["km", "run", "probe of run"]
    row = rows["run"]
    assert (row.stage, row.model, row.size, row.seed, row.epochs) == ("pretrain", "micro", "830 k weights", "0", "3")
    assert row.seconds == summary["seconds"]
    assert row.date == summary["date"][:16].replace("T", " ")
    assert row.commit.rstrip("+") == (summary["git_commit"] or "")[:12].rstrip("+")
    assert row.version == summary["versions"]["clustermim"]
    assert rows["km"].size == "6 tokens"


def test_nothing_is_made_up_and_nothing_of_another_kind_is_shown() -> None:
    odd = run(
        {"data": "digits", "seed": [1], "epochs": {"a": 1}, "model": True},
        seconds="long",
        date=7.5,
        git_commit=["x"],
        versions=3,
    )
    (row,) = origins([NamedRun("t", odd)])
    assert row == Origin(
        "t", "pretrain", "", "", "", "", None, "7.5", "", "", "digits", "clustermim pretrain --data digits --out out"
    )
    (row,) = origins([NamedRun("t", run({}))])
    assert (row.seed, row.seconds, row.date, row.commit, row.command) == ("", None, "", "", None)


def test_the_page_has_the_command_as_text(tmp_path: Path) -> None:
    made = pretrained(tmp_path / "run")
    config = yaml.safe_load((made / "config.yaml").read_text()) | {"data": "<b>'x'</b>"}
    (made / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["report", str(made), "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "<b>'x'" not in page
    assert "&lt;b&gt;" in page
    assert TEXTURES.partition("?")[0] not in page.partition('<td class="command">')[2].partition("</td>")[0]
