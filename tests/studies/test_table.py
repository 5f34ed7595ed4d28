"""Tables of what cells gave: rows over seeds, differences, columns that some rows lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_study import described, write

from clustermim.errors import ConfigError
from clustermim.mean_ci import MeanCI
from clustermim.studies import read_study
from clustermim.studies import result as result_module
from clustermim.studies.description import Study
from clustermim.studies.result import StudyResult
from clustermim.studies.table import Row, differences, make_rows


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
    assert rows[0].estimate("loss") == MeanCI(1.5, 0.0, 3)
    ((more, less, found),) = differences(study, rows)
    assert (more, less) == ("more", "MAE")
    assert found["kNN"].mean == pytest.approx((25 + 25 + 23) / 3)
    assert found["kNN"].numbers == (3, 3)
    # an independent computation of Student's interval: t(0.975, 2) = 4.302653
    interval = MeanCI.of([25.0, 25.0, 23.0]).interval()
    assert interval is not None
    assert interval[1] - interval[0] == pytest.approx(2 * 4.302653 * (4 / 3) ** 0.5 / 3**0.5, rel=1e-6)
    assert MeanCI.of([1.0]).interval() is None


def test_a_difference_has_the_interval_of_welch() -> None:
    from scipy import stats

    more, less = [55.1, 56.0, 55.5], [54.0, 54.2, 53.1, 54.9]
    found = MeanCI.of(more).minus(MeanCI.of(less))
    peer = stats.ttest_ind(more, less, equal_var=False).confidence_interval(0.95)
    assert found.interval == pytest.approx((peer.low, peer.high))
    assert MeanCI.of([2.0, 2.0]).minus(MeanCI.of([1.0, 1.0])).interval == (1.0, 1.0)
    assert MeanCI.of([2.0]).minus(MeanCI.of([1.0, 1.5])).interval is None


def test_a_total_counts_all_that_a_row_was_made_of(tmp_path: Path) -> None:
    columns = {"cost": {"stage": "student", "value": "flops", "total": True, "scale": 0.5}}
    study = read_study(write(tmp_path, described(table={"rows": {"one": "student"}, "columns": columns})))
    tokens, teacher = cell("tokens", "fit kmeans", "a", {"flops": 1}), cell("mae", "pretrain", "b", {"flops": 10})
    student = cell("student", "pretrain", "c", {"flops": 100}) | {"needs": ["a"]}
    tokens["needs"] = ["b"]
    (row,) = make_rows(study, {"cells": [tokens, teacher, student]})
    assert row.estimate("cost") == MeanCI.of([55.5])


def cell(name: str, stage: str, key: str, results: dict[str, Any], **axes: Any) -> dict[str, Any]:
    """A cell as a record has it."""
    return {"name": name, "stage": stage, "key": key, "axes": axes, "needs": [], "options": {}, "results": results}


def test_a_score_that_could_not_be_computed_is_left_out(tmp_path: Path) -> None:
    table = {"rows": {"few": {"tokens": {"k": 4}}, "more": {"tokens": {"k": 8}}}, "columns": {"kin": {"value": "kin"}}}
    study = read_study(write(tmp_path, described(table=table)))
    cells = [cell("tokens", "fit kmeans", key, {"kin": kin}, k=k) for key, kin, k in (("a", None, 4), ("b", 0.5, 8))]
    few, more = make_rows(study, {"cells": cells})
    assert few.estimate("kin") is None
    assert more.estimate("kin") == MeanCI.of([0.5])


def test_several_cells_for_one_place_are_not_passed_over(tmp_path: Path) -> None:
    table = {"rows": {"one": "tokens"}, "columns": {"psnr": {"value": "psnr"}}}
    study = read_study(write(tmp_path, described(table=table)))
    cells = [cell("tokens", "fit kmeans", key, {"psnr": 20.0}, k=k) for key, k in (("a", 4), ("b", 8))]
    with pytest.raises(ConfigError, match="row 'one' has several values of 'psnr' for seed 0"):
        make_rows(study, {"cells": cells})
    study.table["rows"]["one"] = {"tokens": {"k": 8}}
    assert len(make_rows(study, {"cells": cells})) == 1


def printed(study: Study, rows: list[Row], patch: pytest.MonkeyPatch) -> str:
    """What a command prints of such rows."""
    patch.setattr(result_module, "make_rows", lambda *_: rows)
    return str(StudyResult(study, {"cells": []}))


def test_differences_have_the_decimals_of_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"columns": {"tcas": {"value": "x", "decimals": 4}}, "differences": [["[b]two[/b]", "one"]]}
    table["rows"] = {"one": "a", "[b]two[/b]": "a"}
    study = Study("few", "Few", "", (), table)
    rows = [Row("one", {"tcas": {0: 0.5}}), Row("[b]two[/b]", {"tcas": {0: 0.5042}})]
    text = printed(study, rows, monkeypatch)
    assert text.splitlines()[-1].split() == ["[b]two[/b]", "−", "one", "+0.0042", "1"]  # names are no markup


def test_a_column_that_not_every_row_has(tmp_path: Path) -> None:
    table = {"rows": {"one": "tokens"}, "columns": {"psnr": {"value": "psnr", "optional": True}}}
    study = read_study(write(tmp_path, described(table=table)))
    (row,) = make_rows(study, {"cells": [cell("tokens", "fit kmeans", "a", {})]})
    assert row.estimate("psnr") is None
    study.table["columns"]["psnr"].pop("optional")
    with pytest.raises(ConfigError, match="have no 'psnr'"):
        make_rows(study, {"cells": [cell("tokens", "fit kmeans", "a", {})]})


def test_all_columns_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {f"a column of a long name, {place}": {"value": "x"} for place in range(9)}
    study = Study("s", "All of it", "", (), {"rows": {"one": "a"}, "columns": columns})
    text = printed(study, [Row("one", {name: {0: 1.25} for name in columns})], monkeypatch)
    assert "…" not in text
    assert any(all(name in line for name in columns) for line in text.splitlines())
