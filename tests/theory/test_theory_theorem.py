"""Partitions, the corrected Theorem 1, and merging."""

import math

import numpy as np
import pytest
from graph_toys import Graph, TrainTest, admissible_graphs, graphs
from hypothesis import given, settings

from clustermim import theory
from clustermim.errors import ConfigError, DataError
from paper import merging
from paper.partitions import check_theorem, partition_terms, restricted_growth, set_partitions
from paper.theorem import component_labels

BELL = (1, 2, 5, 15, 52, 203, 877, 4140, 21147, 115975)


def test_every_partition_once() -> None:
    for n, count in enumerate(BELL[:8], 1):
        found = list(set_partitions(n))
        assert len(found) == len(set(found)) == count
        assert found == sorted(found)
        assert all(restricted_growth(partition) == partition for partition in found)
    assert sum(1 for _ in set_partitions(10)) == BELL[9]


@settings(max_examples=100)
@given(graphs(targets=6))
def test_partition_terms(graph: Graph) -> None:
    every = list(set_partitions(graph.M.shape[1]))
    chosen = [every[i] for i in graph.rng.integers(len(every), size=5)]
    spectral, error = partition_terms(graph.M, graph.y1, chosen)
    for tok, a, b in zip(chosen, spectral, error, strict=True):
        assert a == pytest.approx(theory.sum_sq(graph.M, tok), abs=1e-12)
        assert b == pytest.approx(theory.alpha_hard(graph.M, tok, graph.y1), abs=1e-12)


@settings(max_examples=1000)
@given(admissible_graphs())
def test_critical_ratio_between_the_two(graph: TrainTest) -> None:
    report = check_theorem(graph.M, graph.y1, graph.y2)
    assert report.necessary - 1e-7 <= report.optimal[0] <= report.sufficient + 1e-7


@settings(max_examples=200)
@given(admissible_graphs(targets=5))
def test_labels_optimal_exactly_from_the_critical_ratio(graph: TrainTest) -> None:
    classes = len(set(graph.y1.tolist()))
    critical = check_theorem(graph.M, graph.y1, graph.y2).optimal[0]
    above = check_theorem(graph.M, graph.y1, graph.y2, critical * 1.01)
    below = check_theorem(graph.M, graph.y1, graph.y2, critical * 0.99)
    assert above.admissible
    assert above.labels_optimal
    assert not below.labels_optimal
    assert below.counterexample is not None
    assert below.counterexample.bound < below.labels.bound
    assert above.labels.alpha == pytest.approx(0, abs=1e-12)
    assert above.labels.sum_sq == pytest.approx(classes, abs=1e-9)
    assert theory.spectrum(graph.M, graph.y2)[classes:] == pytest.approx(0, abs=1e-12)  # the tail form is trivial


@pytest.mark.parametrize(
    ("size", "expected"), [(2, 2.667), (4, 3.2), (8, 3.556), (16, 3.765), (64, 3.938), (256, 3.984)]
)
def test_sufficient_ratio_is_sharp(size: int, expected: float) -> None:
    """Relabelling one of 2N points: its critical ratio tends to 4, the sufficient ratio of two even classes."""
    Z = theory.toy_incidence(size, 0)
    tok = [0] * size + [1] * size
    tok[0] = 1
    ratio = (2 - theory.toy_sum_sq(Z, tok)) / theory.toy_alpha(Z, tok)
    assert round(ratio, 3) == expected


def test_ratios() -> None:
    assert theory.necessary_ratio([0.25] * 4) == pytest.approx(4)
    assert theory.sufficient_ratio([0.25] * 4) == pytest.approx(8)
    assert theory.sufficient_ratio([0.7, 0.2, 0.1]) == pytest.approx(15)
    assert theory.necessary_ratio([1.0]) == theory.sufficient_ratio([1.0]) == 0
    for bad, message in (([0.5, 0.6], "sums to 1.1"), ([1.0, 0.0], "positive"), ([[1.0]], "list"), ([], "list")):
        with pytest.raises(DataError, match=message):
            theory.necessary_ratio(bad)
        with pytest.raises(DataError, match=message):
            theory.sufficient_ratio(bad)


def test_theorem_without_its_assumption() -> None:
    M = [[3, 1, 0], [0, 3, 1], [1, 0, 3]]
    report = check_theorem(M, [0, 0, 1], [0, 0, 1])
    assert not report.admissible


def test_the_report_prints_as_a_table() -> None:
    report = check_theorem([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]], [0, 0, 1, 1], [0, 0, 1, 1])
    text = str(report)
    assert text.startswith("15 tokenizers of 4 targets, class shares 0.5, 0.5\n")
    assert "at c2/c1 = 2.5 the labels are NOT optimal" in text
    assert "the labels are optimal for c2/c1: from 3 on" in text
    assert [row[:2] for row in report.table().rows] == [
        ("labels", "0 0 1 1"),
        ("lowest bound", " ".join(map(str, report.best.tok))),
        ("beats the labels below 3", " ".join(map(str, report.counterexample.tok))),
    ]
    assert repr(report) == "TheoremReport(partitions=15, labels optimal for c2/c1: from 3 on)"
    assert report.to_dict()["labels"] == {"tok": (0, 0, 1, 1), "sum_sq": report.labels.sum_sq, "alpha": 0, "bound": 2}
    assert "<td>labels</td>" in report._repr_html_()


def test_labels_are_compared_by_name() -> None:
    report = check_theorem([[1, 0], [0, 1]], [5, 9], [9, 5])
    assert not report.admissible
    assert check_theorem([[1, 0], [0, 1]], [5, 9], [5, 9]).admissible


def test_components() -> None:
    y1, y2 = component_labels([[1, 0, 0], [0, 2, 0], [0, 1, 1]])
    assert y1.tolist() == [0, 1, 1]
    assert y2.tolist() == [0, 1, 1]


def test_enumeration_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="1 to 10 targets, not 11"):
        set_partitions(11)
    with pytest.raises(ConfigError, match="1 to 10 targets, not 0"):
        set_partitions(0)
    with pytest.raises(ConfigError, match="1 to 10 targets, not 11"):
        check_theorem(np.eye(11, dtype=int), range(11), range(11))
    with pytest.raises(DataError, match="2 points"):
        check_theorem([[1, 0], [0, 1]], [0, 1], [0, 1, 1])


def test_winning_interval() -> None:
    terms = [1.0, 1.5, 2.0, 2.5], [0.5, 0.2, 0.0, 0.0]
    assert theory.winning_interval(*terms, 0) == pytest.approx((0, 5 / 3))
    assert theory.winning_interval(*terms, 1) == pytest.approx((5 / 3, 2.5))
    assert theory.winning_interval(*terms, 2) == (2.5, math.inf)
    assert theory.winning_interval(*terms, 3) is None
    assert theory.winning_interval([1.0, 1.9, 2.0], [0.5, 0.4, 0.0], 1) is None


@settings(max_examples=500)
@given(graphs())
def test_merge_formulas(graph: Graph) -> None:
    keep = graph.M.sum(axis=0) > 0  # merging needs tokens with mass
    M, tok = graph.M[:, keep], np.unique(graph.tok[keep], return_inverse=True)[1]
    mass, K = theory.class_mass(M, tok, graph.y1), theory.token_matrix(M, tok)
    i, j = graph.rng.integers(tok.max() + 1, size=2)
    merged = np.unique(np.where(tok == j, i, tok), return_inverse=True)[1]
    rise = theory.alpha_hard(M, merged, graph.y1) - theory.alpha_hard(M, tok, graph.y1)
    assert merging.merge_alpha(mass)[i, j] == pytest.approx(rise, abs=1e-12)
    fall = theory.sum_sq(M, merged) - theory.sum_sq(M, tok)
    assert merging.merge_sum_sq(K, mass.sum(axis=0))[i, j] == pytest.approx(fall, abs=1e-10)


@settings(max_examples=100)
@given(graphs(views=12, targets=9))
def test_greedy_merging_follows_the_curve(graph: Graph) -> None:
    M = graph.M + 1e-3
    M /= M.sum()
    for ratio in (2.5, None):
        start, merges = merging.greedy_merge(M, graph.tok, graph.y1, ratio)
        assert start == pytest.approx((theory.sum_sq(M, graph.tok), theory.alpha_hard(M, graph.tok, graph.y1)))
        assert [merge.tokens for merge in merges] == list(range(graph.tok.max(), 0, -1))
        for step in range(1, len(merges) + 1):
            tok = merging.merged_tokens(graph.tok, merges[:step])
            assert tok.max() + 1 == merges[step - 1].tokens
            assert merges[step - 1].sum_sq == pytest.approx(theory.sum_sq(M, tok), abs=1e-10)
            assert merges[step - 1].alpha == pytest.approx(theory.alpha_hard(M, tok, graph.y1), abs=1e-12)


def test_greedy_takes_the_best_first_step() -> None:
    rng = np.random.default_rng(5)
    M, y1, tok = rng.random((9, 6)), rng.integers(2, size=9), np.arange(6)
    M /= M.sum()
    _, merges = merging.greedy_merge(M, tok, y1, 2.5, tokens=5)
    pairs = [(i, j) for i in range(6) for j in range(i)]
    values = [theory.bound(M, np.unique(np.where(tok == i, j, tok), return_inverse=True)[1], y1) for i, j in pairs]
    assert merges[0].sum_sq + 2.5 * merges[0].alpha == pytest.approx(min(values))
    assert merging.merged_tokens(tok, merges).max() == 4


def test_bad_merging() -> None:
    with pytest.raises(ConfigError, match="cannot be merged down to 3"):
        merging.greedy_merge([[1, 2]], [0, 1], [0], tokens=3)
    with pytest.raises(ConfigError, match="token 1 has no mass"):
        merging.greedy_merge([[1, 0]], [0, 1], [0])
