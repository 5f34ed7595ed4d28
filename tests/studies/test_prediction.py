"""`study --predict`: scores and orders before any training, refusals, and the comparison with what training gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_study import DATA, SHORT, described, write

from clustermim.cli import main
from clustermim.errors import RunError
from clustermim.scores import SCORES
from clustermim.studies import expand, read_study
from clustermim.studies.cells import Cell
from clustermim.studies.comparison import comparison_tables, content_hash, read_checked, read_prediction
from clustermim.studies.result import StudyResult
from clustermim.studies.table import outcome_columns

FIT = {"data": DATA, "patch_size": 4}


def many(**changes: Any) -> dict[str, Any]:
    """Five tokenizers, one the labels and one of an encoder of the study, which is to be trained first."""
    names = ["@tokens", "@labels", "@random", "@own"]
    study = {
        "stages": [
            {"name": "tokens", "stage": "fit kmeans", "options": FIT, "grid": {"k": [4, 8]}},
            {"name": "labels", "stage": "fit labels", "options": FIT},
            {"name": "random", "stage": "fit random", "options": FIT | {"k": 4}},
            {"name": "mae", "stage": "pretrain", "options": SHORT | {"target": "pixels"}},
            {"name": "own", "stage": "fit kmeans", "options": FIT | {"space": "features", "teacher": "@mae", "k": 4}},
            {"name": "score", "stage": "score", "options": {"data": DATA}, "grid": {"tokenizer": names}},
            {"name": "masked", "stage": "pretrain", "options": SHORT, "grid": {"tokenizer": names, "seed": [0, 1]}},
            {"name": "probe", "stage": "probe", "options": {"run": "@masked", "data": DATA, "test_data": DATA}},
        ],
        "table": {
            "rows": {
                "few": {"tokens": {"k": 4}},
                "more": {"tokens": {"k": 8}},
                "labels": "labels",
                "random": "random",
                "MAE": "mae",
            },
            "columns": {
                "linear": {"stage": "probe", "value": "avg.accuracy", "percent": True},
                "class token": {"stage": "probe", "value": "cls.accuracy", "hidden": True},
                "C": {"stage": "probe", "value": "avg.c", "optional": True},
                "TCAS": {"stage": "score", "value": "debiased"},
            },
            "correlations": {"families": {"all but labels": ["few", "more", "random"]}},
        },
    }
    return described(**study | changes)


@pytest.fixture
def predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[str]]:
    """The record of a prediction, and the words that made it."""
    study = write(tmp_path, many())
    words = ["study", str(study), "--out", str(tmp_path / "runs"), "--records", str(tmp_path / "kept"), "--predict"]
    assert main(words) == 0
    return tmp_path / "kept" / "predictions" / "small.json", words


def test_only_fits_and_scores_are_run(
    predicted: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = predicted
    stages = {folder.name.rpartition("-")[0] for folder in (tmp_path / "runs").iterdir()}
    assert stages == {"fit-kmeans", "fit-labels", "fit-random", "score"}
    record = read_checked(path)
    assert [entry["name"] for entry in record["tokenizers"]] == ["tokens (k 4)", "tokens (k 8)", "labels", "random"]
    assert len(record["left_out"]) == 1  # that of the encoder's features
    assert set(record["outcomes"]) == {"linear", "class token"}
    cells = {cell.key: cell for cell in expand(read_study(tmp_path / "small.yaml"))}
    assert {cells[key].stage for key in record["cells"]} == {"pretrain", "probe"}
    assert len(record["cells"]) == 16  # of four tokenizers and two seeds; none of `own`
    assert "own" not in str(record["cells"].values())
    assert {"date", "versions", "git_commit", "fingerprint"} <= record.keys()


def test_orders_follow_the_direction_of_each_score(predicted: tuple[Path, list[str]]) -> None:
    record = read_checked(predicted[0])
    usual = [name for name, row in SCORES.items() if not row.on_request and row.higher_is_better is not None]
    assert list(record["orders"]) == usual
    for name, found in record["orders"].items():
        scores = {entry["name"]: entry["scores"][name] for entry in record["tokenizers"]}
        values = [scores[one] for one in found["order"]]
        assert values == sorted(values, reverse=bool(SCORES[name].higher_is_better))
        assert set(found["order"]) == {one for one, value in scores.items() if value is not None}
    assert record["orders"]["debiased"]["order"][0] == "labels"
    assert record["orders"]["debiased"]["choice"] != "labels"  # they are the answer, not a choice


def test_a_second_prediction_is_refused(predicted: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    before = predicted[0].read_bytes()
    capsys.readouterr()
    assert main(predicted[1]) == 2
    assert "holds a prediction of this study already" in capsys.readouterr().err
    assert predicted[0].read_bytes() == before


def cell_of(path: Path, name: str) -> Cell:
    return next(cell for cell in expand(read_study(path)) if cell.name == name)


@pytest.mark.parametrize("where", ["folder", "records"])
@pytest.mark.parametrize("name", ["masked", "probe"])
def test_it_is_refused_after_a_training(
    where: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, kept = write(tmp_path, many()), tmp_path / "runs", tmp_path / "kept"
    cell = cell_of(path, name)
    if where == "folder":
        cell.folder(out).mkdir(parents=True)  # begun, not complete
    else:
        kept.mkdir()
        entry = {"name": "x", "stage": cell.stage, "axes": {}, "key": cell.key, "needs": [], "options": {}}
        content = {"format": 1, "study": "other", "cells": [entry | {"results": {}}]}
        (kept / "other.json").write_text(json.dumps(content))
    assert main(["study", str(path), "--out", str(out), "--records", str(kept), "--predict"]) == 2
    error = capsys.readouterr().err
    assert f"error: too late to predict: {name} (" in error
    assert len(error.splitlines()) == 1
    assert not (kept / "predictions").exists()
    assert not list(out.glob("fit*"))


def test_a_training_without_these_tokenizers_does_not_matter(tmp_path: Path) -> None:
    path, out = write(tmp_path, many()), tmp_path / "runs"
    cell_of(path, "mae").folder(out).mkdir(parents=True)
    assert main(["study", str(path), "--out", str(out), "--records", str(tmp_path / "kept"), "--predict"]) == 0


@pytest.mark.parametrize("word", ["--table", "--dry-run", "--results=x.json", "--only=score"])
def test_it_goes_alone(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", str(write(tmp_path, many())), "--predict", word]) == 2
    assert "leave out --dry-run, --table, --results and --only" in capsys.readouterr().err


def test_a_study_without_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = many(stages=many()["stages"][3:4], table={})
    assert main(["study", str(write(tmp_path, study)), "--predict", "--records", str(tmp_path / "kept")]) == 2
    assert "has no score of a tokenizer" in capsys.readouterr().err


def test_several_scores_of_a_tokenizer_have_orders_of_their_own(tmp_path: Path) -> None:
    study = many(table={})
    study["stages"] = study["stages"][:1]
    score = {"stage": "score", "options": {"tokenizer": "@tokens"}}
    study["stages"].append(score | {"name": "score", "grid": {"data": [DATA, f"{DATA}&limit=48"]}})
    words = ["study", str(write(tmp_path, study)), "--out", str(tmp_path / "runs"), "--records", str(tmp_path)]
    assert main([*words, "--predict"]) == 0
    record = read_checked(tmp_path / "predictions" / "small.json")
    assert len(record["tokenizers"]) == 2
    first, second = (f"score (data {data}): tcas" for data in (DATA, f"{DATA}&limit=48"))
    assert {first, second} <= record["orders"].keys()
    assert len(record["orders"][second]["order"]) == 2


def test_a_changed_prediction_is_not_read(predicted: tuple[Path, list[str]]) -> None:
    record = json.loads(predicted[0].read_text())
    record["orders"]["tcas"]["choice"] = "random"
    predicted[0].write_text(json.dumps(record))
    with pytest.raises(RunError, match="was changed"):
        read_checked(predicted[0])


# What training gave, by tokenizer: accuracies of two seeds.
GIVEN = {"tokens (k 4)": (0.50, 0.52), "tokens (k 8)": (0.60, 0.62), "labels": (0.9, 0.9), "random": (0.10, 0.10)}


def toy_prediction() -> tuple[dict[str, Any], dict[str, Any]]:
    """A prediction by two scores, and the record of what came after."""
    scores = {"tokens (k 4)": 0.9, "tokens (k 8)": 0.2, "labels": 1.0, "random": 0.1}
    tokenizers = [
        {"name": name, "key": name, "stage": "fit labels" if name == "labels" else "fit kmeans",
         "scores": {"up": value, "down": value}}
        for name, value in scores.items()
    ]  # fmt: skip
    orders = {"up": {"higher_is_better": True}, "down": {"higher_is_better": False}}
    prediction = {"tokenizers": tokenizers, "orders": orders, "date": "2026-01-01", "sha256": "f" * 64}
    cells = []
    for name, values in GIVEN.items():
        place = {"k": int(name[-2])} if "k" in name and "tokens" in name else {}
        fit = {"name": name.split(" ")[0], "stage": "fit", "key": name, "needs": [], "results": {"debiased": 1.0}}
        cells.append(fit | {"axes": place, "options": {}})
        for seed, value in enumerate(values):
            both = {part: {"accuracy": value} for part in ("avg", "cls")}
            at = {"axes": place | {"seed": seed}, "options": {}}
            run = {"name": "masked", "stage": "pretrain", "key": f"{name} {seed}", "needs": [name], "results": {}}
            probe = {"name": "probe", "stage": "probe", "key": f"p {name} {seed}", "needs": [run["key"]]}
            cells += [run | at, probe | at | {"results": both}]
    return prediction, {"cells": cells}


def test_the_table_compares(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, many()))
    prediction, record = toy_prediction()
    result = StudyResult(study, record, prediction=prediction)
    *_, every, without = result.tables()
    assert every.title == "Predicted before training, all rows"
    names = ["", "rows", "choice", "Spearman, linear", "regret", "Spearman, class token", "regret"]
    assert list(every.columns) == names
    up, down = every.rows
    # labels come first both times, then 8, 4, random; predicted were 4 before 8. The choice is 4, ten points too low.
    assert up[:3] == ["up", "4", "few"]
    assert up[3].startswith("+0.80")
    assert up[4] == "10.00"
    assert up[6] == "10.00"  # a share, in points
    assert down[:3] == ["down", "4", "random"]
    assert down[3].startswith("-0.80")
    assert down[4] == "51.00"
    assert [line[1:5] for line in without.rows] == [["3", "few", "", "10.00"], ["3", "random", "", "51.00"]]
    assert "Predicted before training, within all but labels" in result.markdown()


def test_what_is_not_measured_yet_has_no_regret(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, many()))
    prediction, record = toy_prediction()
    record["cells"] = [cell for cell in record["cells"] if not cell["key"].startswith("p tokens (k 4)")]
    rows = StudyResult(study, record).rows
    up, down = next(comparison_tables(study, record, rows, prediction)).rows
    assert up[4] == ""
    assert down[4] == "51.00"


def test_a_study_changed_since_is_told(predicted: tuple[Path, list[str]], tmp_path: Path) -> None:
    def note(study: dict[str, Any]) -> str | None:
        described = read_study(write(tmp_path, study))
        found = read_prediction(tmp_path / "kept", described, expand(described))
        return found and found["note"]

    assert note(many()) == ""
    more = many()
    more["table"]["columns"]["linear"]["value"] = "cls.accuracy"
    assert "changed after the prediction" in str(note(more))
    other = many()
    for entry in other["stages"][:1]:
        entry["options"] = FIT | {"data": f"{DATA}&seed=9"}
    other["stages"] = [entry for entry in other["stages"] if entry["name"] == "tokens"]
    assert note(other | {"table": {}}) is None  # nothing of it was predicted


def test_accuracies_are_outcomes(tmp_path: Path) -> None:
    assert list(outcome_columns(read_study(write(tmp_path, described())))) == ["kNN"]


def test_the_hash_is_of_the_content_alone() -> None:
    assert content_hash({"a": 1, "b": float("nan")}) == content_hash({"b": None, "a": 1, "sha256": "x"})
    assert content_hash({"a": 1}) != content_hash({"a": 2})
