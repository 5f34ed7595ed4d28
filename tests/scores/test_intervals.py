"""Scores of tables of groups: their values, their intervals in simulation, and what cannot be computed."""

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clustermim import scores as metrics
from clustermim.scores import SCORES, Scores, TCASVariant, Tokens
from clustermim.scores.intervals import table_facts

Array = NDArray[Any]
GROUPS, PERMUTATIONS = 20, 10
NAMES = ("tcas", "null", "chance", "adjusted", "debiased", "alpha", "nmi", "perplexity")


class Counted(Tokens):
    """Tables of groups (G, l, c), and under permuted labels (P, l, c), instead of images."""

    def __init__(self, counts: Array, null_counts: Array, variant: TCASVariant) -> None:
        self.counts, self.null_counts, self.variant, self._known = counts, null_counts, variant, {}
        self.shuffles = np.zeros((len(null_counts), 0), dtype=np.int64)
        self.filled = [g for g in range(len(counts)) if counts[g].any()]
        self.frequencies = self.table().sum(axis=1)

    def table(self, groups: Any = None, permutation: int | None = None) -> Array:
        if permutation is not None:
            return self.null_counts[permutation].astype(np.float64)
        return self.counts[self.filled if groups is None else groups].sum(axis=0, dtype=np.float64)


def assess(counts: Array, null_counts: Array | None = None, **variant: Any) -> dict[str, Any]:
    tokens = Counted(counts, np.zeros((0, 1, 1)) if null_counts is None else null_counts, TCASVariant(**variant))
    return Scores({name: SCORES[name].measure(tokens) for name in NAMES}, table_facts(tokens)).to_dict()


def count(tokens: Array, labels: Array, size: int, classes: int, seed: int = 0) -> tuple[Array, Array]:
    """Tables by group (image index mod G) and under permuted image labels."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((GROUPS, size, classes), dtype=np.int64)
    np.add.at(counts, (np.arange(len(tokens))[:, None] % GROUPS, tokens, labels[:, None]), 1)
    null_counts = np.zeros((PERMUTATIONS, size, classes), dtype=np.int64)
    for table in null_counts:
        np.add.at(table, (tokens, rng.permutation(labels)[:, None]), 1)
    return counts, null_counts


def draw(seed: int, signal: float, images: int = 400) -> tuple[Array, Array, float]:
    """Images with 16 patches; its style, hence its tokens, follows its class with probability `signal`.

    Returns tokens, labels and the TCAS of the true token profiles.
    """
    rng = np.random.default_rng(seed)
    size, classes, patches = 30, 5, 16
    styles = rng.dirichlet(np.full(size, 0.5), size=classes)
    labels = rng.integers(classes, size=images)
    style = np.where(rng.random(images) < signal, labels, rng.integers(classes, size=images))
    uniform = rng.random((images, patches, 1))
    tokens = (uniform > styles.cumsum(axis=1)[style][:, None, :-1]).sum(axis=2)
    style_of_class = signal * np.eye(classes) + (1 - signal) / classes
    return tokens, labels, metrics.tcas((style_of_class @ styles).T)


def covered(low: float, value: float, high: float) -> bool:
    return low <= value <= high


def test_information_free_codebook() -> None:
    """Patches of an image share style and label, yet the intervals hold the truth."""
    zero, chance, raw = [], [], []
    for seed in range(60):
        tokens, labels, truth = draw(seed, signal=0.0)
        result = assess(*count(tokens, labels, 30, 5, seed))
        zero.append(covered(result["adjusted_low"], 0, result["adjusted_high"]))
        chance.append(covered(result["debiased_low"], truth, result["debiased_high"]))
        raw.append(result["tcas"] - truth)
    assert np.mean(zero) >= 0.9
    assert np.mean(chance) >= 0.9
    assert np.mean(raw) < -0.005  # what the plain score pretends to have found


@pytest.mark.parametrize("signal", [0.4, 0.8])
def test_informative_codebook(signal: float) -> None:
    inside, error, found = [], [], []
    for seed in range(60):
        tokens, labels, truth = draw(seed, signal)
        result = assess(*count(tokens, labels, 30, 5, seed))
        inside.append(covered(result["debiased_low"], truth, result["debiased_high"]))
        error.append(result["debiased"] - truth)
        found.append(result["adjusted_low"] > 0)
    assert np.mean(inside) >= 0.88
    assert abs(np.mean(error)) < 0.005
    assert np.mean(found) >= 0.95


def test_perfect_tokenizer() -> None:
    labels = np.random.default_rng(0).integers(4, size=200)
    tokens = np.repeat(labels[:, None], 6, axis=1)
    result = assess(*count(tokens, labels, 7, 4))
    assert (result["tcas"], result["debiased"], result["adjusted"]) == (0, 0, 1)
    assert (result["adjusted_low"], result["adjusted_high"]) == (1, 1)
    assert (result["alpha"], result["nmi"]) == (0, 1)
    assert result["debiased_kept"] == 4
    assert result["notes"] == {}


@pytest.mark.parametrize("variant", [{}, {"norm": "softmax", "tau": 0.1, "diag": "norm", "empty": "uniform"}])
def test_values_are_those_of_the_functions(variant: dict[str, Any]) -> None:
    tokens, labels, _ = draw(0, signal=0.5)
    counts, null_counts = count(tokens, labels, 33, 5)
    table = counts.sum(axis=0)
    result = assess(counts, null_counts, **variant)
    assert result["tcas"] == metrics.tcas(table, **variant)
    assert result["null"] == np.mean([metrics.tcas(permuted, **variant) for permuted in null_counts])
    assert result["adjusted"] == 1 - result["tcas"] / result["null"]
    assert result["alpha"] == metrics.alpha(table)
    assert result["nmi"] == metrics.nmi(table)
    assert result["perplexity"] == metrics.perplexity(table.sum(axis=1))
    folds = [counts[a::4].sum(axis=0) for a in range(4)]
    value, kept = metrics.tcas_fourfold(folds)
    assert (result["debiased"], result["debiased_kept"]) == (value, len(kept))
    if not variant:
        margins = np.outer(table.sum(axis=1), table.sum(axis=0))
        assert result["chance"] == pytest.approx(metrics.tcas(margins))
    json.dumps(result, allow_nan=False)  # every value is a plain number or text


def test_intervals_by_hand() -> None:
    tokens, labels, _ = draw(3, signal=0.5)
    counts, null_counts = count(tokens, labels, 30, 5)
    result = assess(counts, null_counts)
    student = 2.093024054408263  # 97.5 % point with 19 degrees of freedom
    total = counts.sum(axis=0)

    left_out = np.array([metrics.tcas(total - group) for group in counts])
    null = np.array([metrics.tcas(table) for table in null_counts])
    variance = 19 / 20 * np.sum((left_out - left_out.mean()) ** 2) / null.mean() ** 2
    variance += (result["tcas"] / null.mean() ** 2) ** 2 * null.var(ddof=1) / len(null)
    half_width = student * math.sqrt(variance)
    assert result["adjusted_high"] - result["adjusted"] == pytest.approx(half_width)
    assert result["adjusted"] - result["adjusted_low"] == pytest.approx(half_width)

    replicates = []
    for g in range(GROUPS):
        rest = np.where(np.arange(GROUPS)[:, None, None] == g, 0, counts)
        replicates.append(metrics.tcas_fourfold([rest[a::4].sum(axis=0) for a in range(4)])[0])
    half_width = student * math.sqrt(19 / 20 * np.sum((np.array(replicates) - np.mean(replicates)) ** 2))
    assert result["debiased_high"] - result["debiased"] == pytest.approx(half_width)


def test_without_permutations() -> None:
    counts = np.random.default_rng(0).integers(1, 9, size=(8, 3, 2))
    result = assess(counts)
    assert math.isnan(result["null"])
    assert math.isnan(result["adjusted"])
    assert math.isnan(result["adjusted_low"])
    assert result["notes"] == {"adjusted": "no permuted labels were counted"}
    assert math.isfinite(result["debiased_low"])


def test_one_class_and_one_token() -> None:
    result = assess(np.ones((4, 1, 1), dtype=int), np.full((2, 1, 1), 4))
    assert (result["tcas"], result["null"], result["alpha"]) == (0, 0, 0)
    assert math.isnan(result["adjusted"])
    assert "one class" in result["notes"]["adjusted"]


def test_four_groups_leave_no_fold_to_spare() -> None:
    result = assess(np.ones((4, 2, 2), dtype=int))
    assert math.isfinite(result["debiased"])
    assert math.isnan(result["debiased_low"])
    assert "without one group" in result["notes"]["debiased_interval"]


def test_too_few_groups_with_images() -> None:
    counts = np.zeros((20, 2, 2), dtype=int)
    counts[:3] = [[2, 1], [1, 2]]
    result = assess(counts, counts.sum(axis=0)[None])
    assert result["adjusted"] == 0
    assert math.isnan(result["adjusted_low"])
    assert math.isnan(result["debiased"])
    assert result["debiased_kept"] == 0
    assert set(result["notes"]) == {"adjusted_interval", "debiased"}


def test_token_that_lives_in_one_group() -> None:
    """Deleting that group takes the token from its fold; the replicate goes on with the others."""
    counts = np.ones((8, 3, 2), dtype=int)
    counts[:, 2] = 0
    counts[:4, 2] = 1
    result = assess(counts)
    assert result["debiased_kept"] == 3
    assert math.isfinite(result["debiased_high"])
