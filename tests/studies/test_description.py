"""What a wrong study gets, and wrong options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_study import described, stages, write

from clustermim.cli import main


def columns(**specs: Any) -> dict[str, Any]:
    """The table with other columns."""
    table: dict[str, Any] = described()["table"]
    return {"rows": table["rows"], "columns": specs}


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
        (
            stages({"name": "a", "stage": "pretrain", "grid": {"seed": 3}}),
            "seed: expected a list of values, not 3",
        ),
        (stages({"name": "a", "stage": "pretrain", "grid": {"seed": [1, 1]}}), "has a value twice"),
        (stages({"name": "a", "stage": "pretrain", "grid": {"seed": []}}), "the axis seed has no values"),
        (stages(*[{"name": "a", "stage": "pretrain", "options": {"data": "d"}}] * 2), "two stages of the name 'a'"),
        (
            stages({"name": "a", "stage": "score", "options": {"tokenizer": "@b", "data": "d"}}),
            "needs @b, which is not there",
        ),
        (
            stages(
                {"name": "a", "stage": "score", "options": {"tokenizer": "@b", "data": "d"}},
                {"name": "b", "stage": "score", "options": {"tokenizer": "@a", "data": "d"}},
            ),
            "goes in a circle: a needs b needs a",
        ),
        (described(table={"rows": {"x": "may"}, "columns": {}}), "row 'x': 'may' is not a stage; did you mean mae?"),
        (described(table={"rows": {"x": "mae"}, "columns": {"y": {"stage": "knn"}}}), "needs a value"),
        (described(table={"row": {}}), "has a key 'row'; did you mean rows?"),
        (described(table={"rows": {50: "mae"}}), "50 is no text, and keys are: put it in quotes"),
        (described(table={"rows": ["mae"]}), "table, rows: expected keys with values"),
        (described(table={"rows": {"x": {}}}), "row 'x' is neither a stage nor one at a place"),
        (described(table={"rows": {"x": {"clusters": 3}}}), "row 'x' is neither a stage nor one at a place"),
        (described(table={"rows": {"x": {"clusters": {"kk": 4}}}}), "no cell of clusters is at {'kk': 4}"),
        (described(table=columns(x={"value": 3})), "columns, x, value: 3 is not of the kind str"),
        (described(table=columns(x={"value": "loss", "decimals": "two"})), "decimals: 'two' is not of the kind int"),
        (described(table=columns(x={"stage": "kn", "value": "loss"})), "'kn' is not a stage; did you mean knn?"),
        (described(table=described()["table"] | {"paper": {"MAE": 3}}), "paper, MAE: expected keys with values"),
        (
            described(table=described()["table"] | {"paper": {"MAD": {}}}),
            "paper: 'MAD' is not a row",
        ),
        (described(table=described()["table"] | {"paper": {"MAE": {"knn": 1}}}), "'knn' is not a column"),
        (described(table={"paper": {"MAE": {}}}), "paper: 'MAE' is not a row"),
        (described(table=described()["table"] | {"differences": 5}), "differences: expected a list of values, not 5"),
        (
            described(table=described()["table"] | {"differences": [["MAE", 3]]}),
            "3 is not of the kind str",
        ),
        (stages({"name": "a", "stage": "pretrain", "use": 3}), "uses the part 3, which is not there"),
        (described(table=described()["table"] | {"differences": [["MAE", "few", "x"]]}), "is not a pair of rows"),
        (described(table=described()["table"] | {"differences": [["MAE", "x"]]}), "'x' is not a row"),
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
        (["--table", "--results", "some.json", "--out", "runs"], "leave one of them out"),
        (["--dry-run", "--table"], "--dry-run runs nothing and has no table"),
        (["--dry-run", "--results", "some.json"], "--dry-run runs nothing and has no table"),
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
