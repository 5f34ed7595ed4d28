"""Tables of what cells gave: rows over seeds, differences, columns that some rows lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_study import described, write

from clustermim.errors import ConfigError
from clustermim.metrics.estimates import Estimate
from clustermim.studies import read_study
from clustermim.studies.table import differences, make_rows


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


def test_a_column_that_not_every_row_has(tmp_path: Path) -> None:
    table = {"rows": {"one": "tokens"}, "columns": {"psnr": {"value": "psnr", "optional": True}}}
    cell = {"name": "tokens", "stage": "fit kmeans", "key": "a", "axes": {}, "needs": [], "options": {}, "results": {}}
    study = read_study(write(tmp_path, described(table=table)))
    (row,) = make_rows(study, {"cells": [cell]})
    assert row.estimate("psnr") is None
    study.table["columns"]["psnr"].pop("optional")
    with pytest.raises(ConfigError, match="have no 'psnr'"):
        make_rows(study, {"cells": [cell]})
