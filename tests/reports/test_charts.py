"""Score against accuracy: the line, its band, and what is no chart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clustermim.reports.charts import fit_line, scatters
from clustermim.reports.collect import RunInfo
from clustermim.reports.ranking import ORDER
from clustermim.reports.records import Measurement, PretrainRecord, TokenizerRecord


def tokenizer(title: str, sum_sq: float, alpha: float, kind: str = "kmeans") -> TokenizerRecord:
    scores = {"sum_sq": Measurement(sum_sq), "alpha": Measurement(alpha), "debiased": Measurement(alpha / 2)}
    found = RunInfo(Path(title), f"fit {kind}", {}, {"results": {}})
    return TokenizerRecord(found, title, "", kind, 8, scores, 8, "test images")


def encoder(title: str, of: TokenizerRecord | None, accuracy: float, folder: Path = Path("none")) -> PretrainRecord:
    found = RunInfo(folder, "pretrain", {}, {"results": {}})
    value = Measurement(accuracy, accuracy - 1, accuracy + 1)
    target = "tokens" if of else "pixels"
    return PretrainRecord(found, title, "", target, title, of, {"probe avg": value}, "test images")


def test_the_line_is_that_of_scipy_and_the_band_that_of_the_formula() -> None:
    generator = np.random.default_rng(0)
    x = generator.random(9)
    y = 3 - 2 * x + generator.normal(0, 0.2, 9)
    fit = fit_line(x.tolist(), y.tolist(), places=5)
    assert fit is not None
    expected = stats.linregress(x, y)
    line, r = fit
    np.testing.assert_allclose(line[:, 2], expected.intercept + expected.slope * line[:, 0])
    assert r == pytest.approx(expected.rvalue)
    # At x = 0 the interval of the mean is that of the intercept.
    shifted = fit_line([*(x - x.min())], y.tolist(), places=2)
    assert shifted is not None
    half_width = stats.t.ppf(0.975, 7) * stats.linregress(x - x.min(), y).intercept_stderr
    assert shifted[0][0, 3] - shifted[0][0, 2] == pytest.approx(half_width)


def test_no_line_where_there_is_none() -> None:
    assert fit_line([1, 2, 3], [1, 2, 3]) is None
    assert fit_line([1, 1, 1, 1], [1, 2, 3, 4]) is None
    assert fit_line([1, 2, 3, 4], [5, 5, 5, 5]) is None


def path_of(chart: dict[str, Any]) -> tuple[int, bool]:
    return len(chart["lines"]), bool(chart["band"])


def test_scatters_pair_every_score_with_every_accuracy() -> None:
    tokenizers = [tokenizer(f"t{i}", 1 + i, 0.9 - 0.1 * i) for i in range(4)]
    runs = [encoder(f"r{i}", of, 50 + i + 0.5 * (i % 2)) for i, of in enumerate(tokenizers)]
    found = scatters([*runs, encoder("MAE", None, 40)])
    assert {(pair.score, pair.measure) for pair in found} == {
        (score, "probe avg") for score in ("debiased", "alpha", "sum_sq")
    }
    for pair in found:
        assert pair.tokenizers == 4
        assert pair.r is not None
        assert path_of(pair.chart) == (1, True)
        assert [point["title"].split(":")[0] for point in pair.chart["points"]] == ["r0", "r1", "r2", "r3"]
        assert all(point["low"] < point["y"] < point["high"] for point in pair.chart["points"])
    (pair,) = [pair for pair in scatters(runs[:3]) if pair.score == "alpha"]
    assert pair.r is None
    seeds = [encoder(f"s{i}", tokenizers[i % 2], 50 + i) for i in range(6)]
    (pair,) = [pair for pair in scatters(seeds) if pair.score == "alpha"]
    assert (pair.r, pair.tokenizers, pair.runs) == (None, 2, 6)  # seeds are no tokenizers
    (whole,) = [pair for pair in scatters([*runs, *runs]) if pair.score == "alpha"]
    (unique,) = [pair for pair in scatters(runs) if pair.score == "alpha"]
    assert whole.r == pytest.approx(unique.r)
    (pair,) = [pair for pair in scatters(runs[:3]) if pair.score == "alpha"]
    assert path_of(pair.chart) == (0, False)


def test_scores_on_different_images_are_not_mixed() -> None:
    tokenizers = [tokenizer(f"t{i}", 1 + i, 0.9 - 0.1 * i) for i in range(8)]
    tokenizers = [replace(of, scored_on="others") if i % 2 else of for i, of in enumerate(tokenizers)]
    found = [pair for pair in scatters([encoder(of.title, of, 50) for of in tokenizers]) if pair.score == "alpha"]
    assert [(pair.data, pair.tokenizers) for pair in found] == [
        ("test images, scored on test images", 4), ("test images, scored on others", 4)
    ]  # fmt: skip


def test_one_tokenizer_is_no_chart_and_what_predicts_comes_first() -> None:
    seeds = [encoder(f"s{i}", tokenizer("t", 1, 0.9), 50 + i) for i in range(5)]
    assert scatters(seeds) == []
    two = [encoder(f"t{i}", tokenizer(f"t{i}", 1 + i, 0.9 - i / 10), 50 + i) for i in range(2)]
    found = [pair.score for pair in scatters(two)]
    assert found == sorted(found, key=ORDER.index) == ["debiased", "alpha", "sum_sq"]
    assert ORDER[:2] == ("transferability", "view_retrieval")
