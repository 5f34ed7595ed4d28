"""What a program reads: with --json one object is all of stdout, and everything else goes to stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clustermim.cli import main
from clustermim.cli.help import read_help
from clustermim.stage_table import STAGES

DATA = "textures:?images=512&grid=4&patch=4&classes=2"
FEW = ("--data", DATA, "--test-data", DATA)
STUDY = {
    "title": "a study",
    "stages": [
        {"name": "tokens", "stage": "fit random", "options": {"data": DATA, "patch_size": 4}, "grid": {"k": [4, 5]}},
        {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": DATA, "permutations": 2}},
    ],
    "table": {
        "rows": {"four": {"tokens": {"k": 4}}, "five": {"tokens": {"k": 5}}},
        "columns": {"nmi": {"stage": "score", "value": "nmi", "decimals": 3}},
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, an encoder and a study."""
    folder = tmp_path_factory.mktemp("json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERMIM_HOME", str(folder / "home"))
        words = ["--data", DATA, "--patch-size", "4", "--out"]
        assert main(["fit", "random", "--k", "8", *words, str(folder / "tokens")]) == 0
        training = ["--target", "pixels", "--epochs", "0", "--device", "cpu"]
        assert main(["pretrain", *training, *words, str(folder / "run")]) == 0
    (folder / "study.yaml").write_text(json.dumps(STUDY))
    return folder


@pytest.fixture
def ask(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command in that folder with --json: what stdout holds."""
    monkeypatch.chdir(place)

    def command(*words: str) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN is no JSON

    return command


def summary(folder: str) -> Any:
    return json.loads((Path(folder) / "summary.json").read_text())["results"]


def test_score(ask: Callable[..., Any]) -> None:
    found = ask("score", "tokens", "--data", DATA, "--out", "score", "--permutations", "2")
    assert found == summary("score")


def test_advise(ask: Callable[..., Any]) -> None:
    found = ask("advise", "--data", DATA, "--budget", "0", "--patch-size", "4", "--out", "advice")
    assert found == json.loads(Path("advice/advice.json").read_text())
    assert found["recommended"] in found["scores"]


@pytest.mark.parametrize("command", ["probe", "knn"])
def test_probe_and_knn(command: str, ask: Callable[..., Any]) -> None:
    found = ask(command, "run", *FEW)
    assert found == summary(f"run/{command}")
    assert 0 <= found["avg"]["accuracy"] <= 1


def test_segment(ask: Callable[..., Any]) -> None:
    assert ask("segment", "run", *FEW) == summary("run/segment")


def test_finetune(ask: Callable[..., Any]) -> None:
    found = ask("finetune", "run", *FEW, "--epochs", "1", "--device", "cpu", "--batch-size", "128", "--out", "tuned")
    assert found == summary("tuned")


def test_iterate(ask: Callable[..., Any]) -> None:
    words = ("--rounds", "1", "--epochs", "1", "--batch-size", "128", "--device", "cpu", "--out", "rounds")
    assert ask("iterate", "--data", DATA, *words)


def test_a_study_and_its_table(ask: Callable[..., Any]) -> None:
    found = ask("study", "study.yaml")
    assert ask("study", "study.yaml", "--table") == found
    assert len(found["cells"]) == 4


def test_doctor(ask: Callable[..., Any]) -> None:
    assert ask("doctor")["devices"][0] == "cpu"


def test_report(ask: Callable[..., Any]) -> None:
    assert ask("report", "tokens", "--out", "page.html", "--images", "16")


def test_what_has_no_result_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", str(place / "study.yaml"), "--dry-run", "--json"]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert "leave out --json" in said.splitlines()[-1]
    assert main(["fit", "random", "--json"]) == 2
    assert "there is no option --json" in capsys.readouterr().err


def test_all_commands_with_it_are_tested_here() -> None:
    known = {name for name in STAGES if "--json" in read_help(name)}
    measuring = {"score", "advise", "iterate", "probe", "knn", "finetune", "segment"}
    assert known == measuring | {"report", "study", "run", "doctor"}
