"""Records: what one holds is not run again, unless something to be run reads its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_study import write

from clustermim.cli import main
from clustermim.studies import expand, read_study, running
from clustermim.studies.records import read_recorded


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two fits with a score each, and their table."""
    data = tmp_path / "data.npz"
    generator = np.random.default_rng(0)
    np.savez(data, images=generator.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), labels=np.arange(40) % 4)
    options = {"data": f"npz:{data}", "patch_size": 4}
    return write(
        tmp_path,
        {
            "stages": [
                {"name": "tokens", "stage": "fit kmeans", "options": options, "grid": {"k": [4, 8]}},
                {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": f"npz:{data}"}},
            ],
            "table": {
                "rows": {"few": {"tokens": {"k": 4}}, "more": {"tokens": {"k": 8}}},
                "columns": {"TCAS": {"stage": "score", "value": "tcas", "decimals": 5}},
            },
        },
    )


@pytest.fixture
def kept(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The record of a whole run, whose folders are gone."""
    folder = tmp_path / "kept"
    folder.mkdir()
    assert main(["study", str(study), "--out", str(tmp_path / "gone"), "--results", str(folder / "small.json")]) == 0
    (tmp_path / "gone").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    return folder / "small.json"


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_a_record_holds_is_not_run(
    study: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "runs", tmp_path / "again.json"
    words = ["study", str(study), "--out", str(out), "--records", str(kept.parent)]
    assert main([*words, "--results", str(again)]) == 0
    printed = capsys.readouterr()
    assert "4 of 4 cells are complete" in " ".join(printed.err.split())
    assert again.read_bytes() == kept.read_bytes()
    assert not out.exists()
    assert main(["study", str(study), "--table", "--results", str(kept)]) == 0
    assert capsys.readouterr().out == printed.out
    assert main([*words, "--table"]) == 0
    assert capsys.readouterr().out == printed.out
    assert main([*words, "--dry-run"]) == 0
    assert "total: 0 cells" in capsys.readouterr().out


def test_what_is_to_be_run_has_the_folders_that_it_reads(study: Path, kept: Path, tmp_path: Path) -> None:
    cells, out = expand(read_study(study)), tmp_path / "runs"
    fit, score = cells[1], cells[3]
    whole = kept.read_bytes()
    change(kept, cells=[entry for entry in json.loads(whole)["cells"] if entry["key"] != score.key])
    words = ["study", str(study), "--out", str(out), "--records", str(kept.parent)]
    assert main([*words, "--results", str(tmp_path / "again.json")]) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(cell.folder(out).name for cell in (fit, score))
    again, before = ({e["key"]: e["results"] for e in json.loads(text)["cells"]} for text in (
        (tmp_path / "again.json").read_bytes(), whole
    ))  # fmt: skip
    assert list(again) == list(before)
    assert again[score.key] == before[score.key]


def test_of_a_cell_in_several_records_the_one_with_more_results(kept: Path) -> None:
    entry = json.loads(kept.read_text())["cells"][0]
    other = kept.with_name("other.json")
    other.write_bytes(kept.read_bytes())
    change(other, study="other", cells=[entry | {"results": entry["results"] | {"more": 1.0}}])
    assert read_recorded(kept.parent)[entry["key"]]["results"]["more"] == 1.0
    other.rename(kept.with_name("a.json"))  # whatever the order
    assert read_recorded(kept.parent)[entry["key"]]["results"]["more"] == 1.0


def test_records_of_other_images_are_refused(
    study: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", images=np.zeros((40, 8, 8, 3), dtype=np.uint8), labels=np.arange(40) % 4)
    running.fingerprints.cache_clear()
    assert main(["study", str(study), "--out", str(tmp_path / "runs"), "--records", str(kept.parent)]) == 2
    assert "made of other images than npz:" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "holds no options or results by name"),
        ("{}", "does not hold results of a study"),
        ('{"format": 1, "cells": [{"key": "x"}]}', "is damaged"),
        (None, "holds no results"),
    ],
)
def test_records_that_are_none(
    study: Path, tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    if text is not None:
        (folder / "x.json").write_text(text)
    assert main(["study", str(study), "--out", str(tmp_path / "runs"), "--records", str(folder)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_record_and_records_at_once(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", str(study), "--table", "--results", "x.json", "--records", "x"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
