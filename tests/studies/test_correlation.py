"""Correlations between the columns of a study's table: scipy and closed forms as oracles, and what bad input gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clustermim.errors import ConfigError
from clustermim.studies import result
from clustermim.studies.correlation import DRAWS, correlate, correlation_tables
from clustermim.studies.description import TABLE, Study, check_shape
from clustermim.studies.result import StudyResult
from clustermim.studies.table import Row, check_names

COLUMNS = {name: {"value": name, "hidden": name == "nmi"} for name in ("tcas", "nmi", "probe")}
NAMES = ("a", "b", "c", "d", "e", "f")
VALUES = {
    "tcas": (0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
    "nmi": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "probe": (50.0, 51.0, 53.0, 52.0, 55.0, 54.0),
}


def study(correlations: Any) -> Study:
    return Study(
        "few", "Few", "", (), {"rows": dict.fromkeys(NAMES, "x"), "columns": COLUMNS, "correlations": correlations}
    )


def rows() -> list[Row]:
    return [Row(name, {c: {0: values[i]} for c, values in VALUES.items()}) for i, name in enumerate(NAMES)]


def test_coefficients_and_the_interval_of_pearson_are_those_of_scipy() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=12)
    y = x + generator.normal(size=12)
    found = correlate(list(x), list(y))
    assert found is not None
    assert found.rows == 12
    peer = stats.pearsonr(x, y)
    assert found.pearson.value == pytest.approx(peer.statistic, abs=1e-12)
    interval = peer.confidence_interval(0.95)
    assert (found.pearson.low, found.pearson.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert found.spearman.value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert found.kendall.value == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(name: str) -> None:
    rho = 0.6
    truth = {
        "pearson": rho,
        "spearman": 6 / math.pi * math.asin(rho / 2),
        "kendall": 2 / math.pi * math.asin(rho),
    }[name]
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        x, y = generator.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=20).T
        found = correlate(list(x), list(y))
        assert found is not None
        coefficient = getattr(found, name)
        held += coefficient.low <= truth <= coefficient.high
    assert 0.90 <= held / 400 <= 0.99


def test_an_interval_over_kinds_is_that_of_samples_that_draw_kinds_as_wholes() -> None:
    generator = np.random.default_rng(2)
    kinds = [name for name in "abcdef" for _ in range(4)]
    x = np.repeat(generator.normal(size=6), 4).round(1) + generator.normal(size=24).round(1) / 2
    y = x + generator.normal(size=24)
    found = correlate(list(x), list(y), kinds)
    assert found is not None
    draws = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), size=DRAWS)
    rows = [np.repeat(np.arange(24), np.repeat(draw, 4)) for draw in draws]  # the same samples, row by row
    peers = [stats.spearmanr(x[sample], y[sample]).statistic for sample in rows if len(set(sample)) > 4]
    assert found.spearman.value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    low, high = np.percentile(peers, (2.5, 97.5))
    assert (found.spearman.low, found.spearman.high) == pytest.approx((low, high), abs=0.01)
    assert math.isnan(found.pearson.low)
    assert math.isnan(found.kendall.low)


def test_copies_of_a_row_in_one_kind_do_not_narrow_its_interval() -> None:
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(2, 12))
    once = correlate(list(x), list(y), [str(i) for i in range(12)])
    thrice = correlate(list(np.repeat(x, 3)), list(np.repeat(y, 3)), [str(i) for i in range(12) for _ in range(3)])
    assert once is not None
    assert thrice is not None
    assert thrice.spearman.low == pytest.approx(once.spearman.low, abs=0.02)
    assert thrice.spearman.high == pytest.approx(once.spearman.high, abs=0.02)
    few = correlate(list(x), list(y), ["a"] * 6 + ["b"] * 3 + ["c"] * 3)
    assert few is not None
    assert math.isnan(few.spearman.low)


def test_too_few_or_equal_numbers_have_none() -> None:
    assert correlate([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) is None
    assert correlate([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]) is None
    near = correlate(list(range(5)), [53.56, 54.46, 55.18, 55.43, 55.65])  # ranks that correlate to 1 but for rounding
    assert near is not None
    assert str(near.spearman) == "+1.00"
    perfect = correlate([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    assert perfect is not None
    assert perfect.spearman.value == -1
    assert math.isnan(perfect.spearman.low)
    assert str(perfect.spearman) == "-1.00"


def test_panels_of_all_rows_and_of_families() -> None:
    asked = {"of": ["probe"], "with": ["tcas", "nmi"], "families": {"first": ["a", "b", "c", "d"], "small": ["e"]}}
    found = list(correlation_tables(study(asked), rows()))
    assert [table.title for table in found] == [f"Correlation with probe, {of}" for of in ("all rows", "within first")]
    for table, count in zip(found, (6, 4), strict=True):
        expected = correlate(VALUES["tcas"][:count], VALUES["probe"][:count])
        assert expected is not None
        assert table.rows == [["tcas", str(count), *map(str, expected[1:])]]


def test_a_row_without_one_of_the_numbers_does_not_count() -> None:
    some = rows()
    some[2].values["probe"].clear()
    (table,) = correlation_tables(study({"of": ["probe"], "with": ["tcas"]}), some)
    assert table.rows[0][:2] == ["tcas", "5"]


def test_markdown_shows_them_and_hides_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "make_rows", lambda *_: rows())
    text = StudyResult(study({"of": ["probe"], "with": ["tcas"]}), {"cells": []}).markdown()
    assert text.splitlines()[0] == "|  | tcas | probe |"
    assert "Correlation with probe, all rows:" in text
    assert "| tcas | 6 | -0.89 (" in text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"of": ["prob"], "with": ["tcas"]}, "'prob' is not a column"),
        ({"of": ["probe"], "with": ["tcsa"]}, "'tcsa' is not a column"),
        ({"of": ["probe"], "with": ["tcas"], "families": {"x": ["z"]}}, "x: 'z' is not a row"),
        ({"for": []}, "has a key 'for'"),
        (["probe"], "expected keys with values"),
        ({"of": "probe"}, "expected a list of values, not 'probe'"),
        ({"families": {"x": 3}}, "expected a list of values, not 3"),
    ],
)
def test_bad_descriptions(asked: Any, message: str) -> None:
    def check() -> None:
        check_shape(study(asked).table, TABLE, "the table")
        check_names(study(asked))

    with pytest.raises(ConfigError) as refused:
        check()
    assert message in str(refused.value)
