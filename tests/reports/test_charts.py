"""The charts: the line and its band, ticks, labels that do not collide, curves, bars and the plane of the bound."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from clustermim.reports.axes import Axis, Chart, Mark, make_chart, overlap, padded, place_labels, round_step, to_path
from clustermim.reports.charts import fit_line, planes, read_losses, scatters, thin, training_curves, usage_bars
from clustermim.reports.collect import RunInfo
from clustermim.reports.records import PretrainRecord, TokenizerRecord
from clustermim.reports.values import Value

VALUES = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=1, max_size=12)


def tokenizer(title: str, sum_sq: float, alpha: float, kind: str = "kmeans") -> TokenizerRecord:
    scores = {"sum_sq": Value(sum_sq), "alpha": Value(alpha), "debiased": Value(alpha / 2)}
    found = RunInfo(Path(title), f"fit {kind}", {}, {"results": {}})
    return TokenizerRecord(found, title, kind, 8, 4, "", scores, 8, "test images", 4)


def encoder(title: str, of: TokenizerRecord | None, accuracy: float, folder: Path = Path("none")) -> PretrainRecord:
    found = RunInfo(folder, "pretrain", {}, {"results": {}})
    value = Value(accuracy, accuracy - 1, accuracy + 1)
    return PretrainRecord(
        found, title, "tokens" if of else "pixels", of, title, "", {"probe avg": value}, "test images"
    )


def test_the_line_is_that_of_scipy_and_the_band_that_of_the_formula() -> None:
    generator = np.random.default_rng(0)
    x = generator.random(9)
    y = 3 - 2 * x + generator.normal(0, 0.2, 9)
    fit = fit_line(x.tolist(), y.tolist(), places=5)
    assert fit is not None
    expected = stats.linregress(x, y)
    np.testing.assert_allclose(fit.middle, expected.intercept + expected.slope * fit.x)
    assert fit.r == pytest.approx(expected.rvalue)
    # At x = 0 the interval of the mean is that of the intercept.
    shifted = fit_line([*(x - x.min())], y.tolist(), places=2)
    assert shifted is not None
    half_width = stats.t.ppf(0.975, 7) * stats.linregress(x - x.min(), y).intercept_stderr
    assert shifted.high[0] - shifted.middle[0] == pytest.approx(half_width)


def test_no_line_where_there_is_none() -> None:
    assert fit_line([1, 2, 3], [1, 2, 3]) is None
    assert fit_line([1, 1, 1, 1], [1, 2, 3, 4]) is None
    assert fit_line([1, 2, 3, 4], [5, 5, 5, 5]) is None


@given(VALUES)
def test_ticks_are_round_inside_and_increasing(values: list[float]) -> None:
    low, high = padded(values)
    axis = Axis(low, high, 0, 100)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    places = [tick.place for tick in ticks]
    assert all(-0.1 <= place <= 100.1 for place in places)
    assert places == sorted(places)
    assert len({tick.label for tick in ticks}) == len(ticks)
    assert all(0 < axis(value) < 100 for value in values)


def test_round_steps() -> None:
    assert [round_step(step) for step in (0.011, 0.3, 2.01, 6, 9)] == [0.01, 0.5, 2, 5, 10]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_labels_do_not_collide(points: list[tuple[float, float]]) -> None:
    chart = make_chart("", "", "", [0, 1], [0, 1])
    chart.marks = [Mark(chart.x(a), chart.y(b), "", f"tokenizer {i}") for i, (a, b) in enumerate(points)]
    labels = place_labels(chart.marks)
    starts = {"start": 0.0, "middle": 0.5, "end": 1.0}
    width = 6.6 * len("tokenizer 0")
    boxes = [(x - starts[a] * width, y - 11, x + (1 - starts[a]) * width, y + 3) for x, y, _, a in labels]
    assert all(not overlap(one, other) for i, one in enumerate(boxes) for other in boxes[:i])
    for mark in chart.marks:
        assert not any(left < mark.x < right and top < mark.y < bottom for left, top, right, bottom in boxes)


def test_points_of_one_group_share_a_label() -> None:
    chart = make_chart("", "", "", [0, 1], [0, 1])
    chart.marks = [Mark(chart.x(0.5), chart.y(y), "", "same") for y in (0.2, 0.5, 0.8)]
    assert [label.text for label in place_labels(chart.marks)] == ["same"]


def path_of(chart: Chart) -> tuple[int, int]:
    return len(chart.lines), len(chart.areas)


def test_scatters_pair_every_score_with_every_accuracy() -> None:
    tokenizers = [tokenizer(f"t{i}", 1 + i, 0.9 - 0.1 * i) for i in range(4)]
    runs = [encoder(f"r{i}", of, 50 + i + 0.5 * (i % 2)) for i, of in enumerate(tokenizers)]
    found = scatters([*runs, encoder("MAE", None, 40)])
    assert {(pair.score, pair.measure) for pair in found} == {
        (score, "probe avg") for score in ("debiased", "alpha", "sum_sq")
    }
    for pair in found:
        assert pair.count == 4
        assert pair.r is not None
        assert path_of(pair.chart) == (1, 1)
        assert [mark.title.split(":")[0] for mark in pair.chart.marks] == ["r0", "r1", "r2", "r3"]
        assert all(mark.low is not None and mark.low > mark.y for mark in pair.chart.marks)  # pixels go down
    (pair,) = [pair for pair in scatters(runs[:3]) if pair.score == "alpha"]
    assert pair.r is None
    seeds = [encoder(f"s{i}", tokenizers[i % 2], 50 + i) for i in range(6)]
    (pair,) = [pair for pair in scatters(seeds) if pair.score == "alpha"]
    assert (pair.r, pair.count, pair.runs) == (None, 2, 6)  # seeds are no tokenizers
    (whole,) = [pair for pair in scatters([*runs, *runs]) if pair.score == "alpha"]
    (unique,) = [pair for pair in scatters(runs) if pair.score == "alpha"]
    assert whole.r == pytest.approx(unique.r)
    (pair,) = [pair for pair in scatters(runs[:3]) if pair.score == "alpha"]
    assert path_of(pair.chart) == (0, 0)


def test_scores_on_different_images_are_not_mixed() -> None:
    tokenizers = [tokenizer(f"t{i}", 1 + i, 0.9 - 0.1 * i) for i in range(8)]
    tokenizers = [replace(of, scored_on="others") if i % 2 else of for i, of in enumerate(tokenizers)]
    found = [pair for pair in scatters([encoder(of.title, of, 50) for of in tokenizers]) if pair.score == "alpha"]
    assert [(pair.data, pair.count) for pair in found] == [
        ("test images, scored on test images", 4), ("test images, scored on others", 4)
    ]  # fmt: skip


def test_the_plane_says_who_wins_where() -> None:
    records = [tokenizer("fine", 3, 0.1), tokenizer("coarse", 1, 0.5), tokenizer("worse", 3, 0.5)]
    (plane,) = planes([*records, tokenizer("oracle", 4, 0, "labels")])
    assert [(winner.tokenizer.title, winner.interval) for winner in plane.winners] == [
        ("coarse", (0.0, 5.0)), ("fine", (5.0, math.inf)), ("worse", None),
    ]  # fmt: skip
    assert [mark.group for mark in plane.whole.marks if mark.style == "end"] == ["a single token", "the labels"]
    assert len(plane.near.marks) == 3


def test_curves_are_grouped_by_target_and_thinned(tmp_path: Path) -> None:
    lines = [f'{{"step": {i}, "loss": {1 / i}}}' for i in range(1, 1001)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 5}', "[]", "{", '{"step": 1, "loss": null}']))
    assert len(read_losses(tmp_path / "metrics.jsonl")) == 1000
    assert len(read_losses(tmp_path / "absent")) == 0
    both = [encoder("a", tokenizer("t", 1, 1), 1, tmp_path), encoder("b", None, 1, tmp_path), encoder("c", None, 1)]
    found = training_curves(both)
    assert [(group.target, [record.title for _, record, _ in group.runs]) for group in found] == [
        ("tokens", ["a"]), ("pixels", ["b"]),
    ]  # fmt: skip
    assert found[0].chart.lines[0].path.count("L") == 149
    assert found[0].runs[0][2] == pytest.approx(1 / 1000)
    assert [label.text for label in found[0].chart.labels] == ["a"]  # at the end of its line


@given(st.integers(1, 40), st.integers(2, 20))
def test_thinning_keeps_both_ends(points: int, count: int) -> None:
    line = np.arange(2.0 * points).reshape(-1, 2)
    kept = thin(line, count)
    assert len(kept) == min(points, count)
    assert (kept[0] == line[0]).all()
    assert (kept[-1] == line[-1]).all()


def test_bars_and_paths() -> None:
    assert usage_bars(np.array([0, 4, 2]), 30, 8) == "M0.0 8.0V0.0H9.0V8.0ZM10.0 8.0V4.0H19.0V8.0Z"
    assert usage_bars(np.zeros(3, dtype=np.int64)) == ""
    assert usage_bars(np.ones(5000, dtype=np.int64)).count("M") == 120
    assert to_path([(0, 1), (2, 3)], closed=True) == "M0.0 1.0L2.0 3.0Z"
    assert to_path([]) == ""
