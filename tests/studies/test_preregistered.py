"""`python -m studies.preregistered` on small repositories: honest histories, and those of cheats."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clustermim.errors import UserError
from clustermim.studies.comparison import content_hash
from studies.preregistered import check, main

PREDICTION, RESULTS = "results/predictions/small.json", "results/small.json"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "someone@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, {"README": "x"})
    return folder


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)


def commit(root: Path, files: dict[str, str | None]) -> None:
    """One commit that writes these files, or deletes those without a content."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a step")


def prediction(choice: str = "a") -> str:
    record: dict[str, Any] = {"format": 1, "study": "small", "orders": {"tcas": {"choice": choice}}}
    record["cells"] = {"0123456789ab": "masked", "ba9876543210": "probe"}
    return json.dumps(record | {"sha256": content_hash(record)}, indent=1)


def results(key: str = "0123456789ab") -> str:
    return json.dumps({"cells": [{"key": key, "results": {}}]}, indent=1)


def told(root: Path) -> list[str]:
    return check(root)["small"]


def test_a_prediction_before_its_results(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(root, {PREDICTION: prediction()})
    assert told(root) == []  # no results yet
    commit(root, {"other": "x"})
    commit(root, {RESULTS: results()})
    commit(root, {RESULTS: results("ba9876543210")})  # more of them, later
    assert told(root) == []
    assert main(root) == 0
    assert capsys.readouterr().out == "small: predicted before its results\n"


def test_a_branch_that_is_merged(root: Path) -> None:
    git(root, "checkout", "-q", "-b", "side")
    commit(root, {PREDICTION: prediction()})
    commit(root, {RESULTS: results()})
    git(root, "checkout", "-q", "main")
    commit(root, {"other": "x"})
    git(root, "merge", "-q", "--no-ff", "side")
    assert told(root) == []


def test_results_first(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(root, {RESULTS: results()})
    commit(root, {PREDICTION: prediction()})
    wrong = " ".join(told(root))
    assert "no commit before it has results/predictions/small.json" in wrong
    assert "has results of it in results/small.json" in wrong
    assert main(root) == 1


def test_both_in_one_commit(root: Path) -> None:
    commit(root, {RESULTS: results(), PREDICTION: prediction()})
    assert any("no commit before it has" in text for text in told(root))


def test_results_that_were_hidden_for_a_while(root: Path) -> None:
    commit(root, {RESULTS: results()})
    commit(root, {RESULTS: None})
    commit(root, {PREDICTION: prediction()})
    commit(root, {RESULTS: results()})
    wrong = told(root)
    assert len(wrong) == 2
    assert "and no commit before it has" in wrong[0]
    assert "without results/predictions/small.json" in wrong[1]


def test_results_on_a_branch_beside_the_prediction(root: Path) -> None:
    git(root, "checkout", "-q", "-b", "side")
    commit(root, {RESULTS: results()})
    git(root, "checkout", "-q", "main")
    commit(root, {PREDICTION: prediction()})
    git(root, "merge", "-q", "--no-ff", "side")
    assert any("no commit before it has" in text for text in told(root))


def test_results_in_the_record_of_another_study(root: Path) -> None:
    commit(root, {"results/other.json": results()})
    commit(root, {PREDICTION: prediction()})
    commit(root, {RESULTS: results()})
    (wrong,) = told(root)
    assert "has results of it in results/other.json" in wrong


def test_a_prediction_that_was_changed_later(root: Path) -> None:
    commit(root, {PREDICTION: prediction("a")})
    commit(root, {RESULTS: results()})
    commit(root, {PREDICTION: prediction("b")})  # with a right hash of its own
    (wrong,) = told(root)
    assert "has another content in commit" in wrong


def test_a_change_that_is_not_committed(root: Path) -> None:
    commit(root, {PREDICTION: prediction("a")})
    (root / PREDICTION).write_text(prediction("b"))
    (wrong,) = told(root)
    assert "was changed since" in wrong


def test_a_prediction_that_is_not_committed(root: Path) -> None:
    (root / PREDICTION).parent.mkdir(parents=True)
    (root / PREDICTION).write_text(prediction())
    assert told(root) == [f"{PREDICTION} is not committed"]


def test_a_wrong_hash(root: Path) -> None:
    commit(root, {PREDICTION: prediction().replace('"a"', '"b"')})
    (wrong,) = told(root)
    assert "was changed: its content has another sha256" in wrong


def test_no_repository_and_half_of_one(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a git repository"):
        check(tmp_path)
    commit(root, {PREDICTION: prediction()})
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{root}", "half")
    with pytest.raises(UserError, match="git fetch --unshallow"):
        check(tmp_path / "half")


def test_nothing_is_predicted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(root) == 0
    assert "holds no predictions" in capsys.readouterr().out
