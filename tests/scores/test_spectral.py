"""α and Σλ² from tokens: definitions, inequalities, and the correction by halves."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from clustermim import scores as metrics
from clustermim.errors import ConfigError, DataError
from clustermim.scores import spectral

Array = NDArray[Any]
tables = (
    st.tuples(st.integers(2, 6), st.integers(1, 5))
    .flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, 9)))
    .filter(lambda table: table.any())
)
token_grids = st.tuples(st.integers(2, 6), st.integers(2, 7)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 4))
)


@given(tables)
def test_merging_two_tokens_raises_alpha_and_lowers_the_spectral_bound(table: Array) -> None:
    merged = np.vstack([table[0] + table[1], table[2:]])
    before, after = metrics.class_level(table), metrics.class_level(merged)
    assert after[0] >= before[0] - 1e-12
    assert after[1] <= before[1] + 1e-12


@given(tables)
def test_merging_formula(table: Array) -> None:
    """Δα is Ward's criterion on class profiles: p_i p_j/(p_i+p_j)·‖P(·|i) − P(·|j)‖²."""
    rows = table.sum(axis=1)
    if rows[0] == 0 or rows[1] == 0:
        return
    merged = np.vstack([table[0] + table[1], table[2:]])
    share = rows / rows.sum()
    distance = np.sum((table[0] / rows[0] - table[1] / rows[1]) ** 2)
    ward = share[0] * share[1] / (share[0] + share[1]) * distance
    assert metrics.alpha(merged) - metrics.alpha(table) == pytest.approx(ward, abs=1e-12)


@given(tables, st.randoms(use_true_random=False))
def test_class_level_does_not_depend_on_names(table: Array, random: Any) -> None:
    rows, columns = list(range(table.shape[0])), list(range(table.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    expected = metrics.class_level(table)
    assert metrics.class_level(table[rows][:, columns]) == pytest.approx(expected, abs=1e-12)


@given(tables)
def test_class_level_ranges(table: Array) -> None:
    alpha, label_sum_sq = metrics.class_level(table)
    classes, used = np.count_nonzero(table.sum(axis=0)), np.count_nonzero(table.sum(axis=1))
    assert -1e-12 <= alpha <= 1 - 1 / classes + 1e-12
    assert 1 - 1e-12 <= label_sum_sq <= min(classes, used) + 1e-12
    assert metrics.class_level(torch.from_numpy(table)) == (alpha, label_sum_sq)


@given(st.integers(0, 2**32 - 1))
def test_class_level_never_exceeds_sum_sq(seed: int) -> None:
    """A random mask graph with hard labels on the first view; both sums from their definitions."""
    rng = np.random.default_rng(seed)
    J = rng.random((6, 4)) ** 3
    J /= J.sum()
    d, p, labels = J.sum(axis=1), J.sum(axis=0), rng.integers(3, size=6)
    Q = J.T @ (J / d[:, None])
    table = np.array([J[labels == k].sum(axis=0) for k in range(3)]).T
    eigenvalues = np.linalg.eigvalsh(Q / np.sqrt(np.outer(p, p)))
    assert metrics.cooccurrence_sum_sq(Q) == pytest.approx(np.sum(eigenvalues**2), abs=1e-12)
    assert metrics.class_level(table)[1] <= metrics.cooccurrence_sum_sq(Q) + 1e-12


def plug_in(tokens: Array) -> float:
    return metrics.cooccurrence_sum_sq(metrics.cooccurrence(tokens, 5))


def cooccurrence_by_pairs(tokens: Array, size: int) -> Array:
    images, patches = tokens.shape
    table = np.zeros((size, size))
    for image in tokens:
        for i in range(patches):
            for j in range(patches):
                if i != j:
                    table[image[i], image[j]] += 1
    return table / (images * patches * (patches - 1))


@pytest.mark.parametrize("size", [5, 200], ids=["by histogram", "by pairs"])
@given(tokens=token_grids)
def test_cooccurrence_counts_pairs(tokens: Array, size: int) -> None:
    """Both ways of counting, for codebooks with and without unused tokens."""
    assert (size <= spectral.GEMM_TOKENS_PER_PATCH * tokens.shape[1]) == (size == 5)
    table = metrics.cooccurrence(tokens, size)
    np.testing.assert_allclose(table, cooccurrence_by_pairs(tokens, size), atol=1e-15)
    compact = metrics.cooccurrence_sum_sq(metrics.cooccurrence(tokens, 5))
    assert metrics.cooccurrence_sum_sq(table) == pytest.approx(compact, abs=1e-12)
    assert 1 - 1e-12 <= compact <= 5 + 1e-12


@pytest.mark.parametrize("size", [5, 200])
def test_counting_in_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(5, size=(11, 6))
    expected = metrics.cooccurrence(tokens, size)
    monkeypatch.setattr(spectral, "CHUNK", 80)
    np.testing.assert_array_equal(metrics.cooccurrence(tokens, size), expected)


@given(token_grids, st.permutations(range(5)))
def test_sum_sq_does_not_depend_on_token_names_or_patch_order(tokens: Array, names: list[int]) -> None:
    renamed = np.array(names)[tokens][:, ::-1]
    assert plug_in(renamed) == pytest.approx(plug_in(tokens), abs=1e-12)
    assert metrics.sum_sq_half(renamed, 5) == pytest.approx(metrics.sum_sq_half(tokens, 5), abs=1e-12)


@given(token_grids)
def test_merging_tokens_lowers_sum_sq(tokens: Array) -> None:
    # Two different patches of an image are not a view and its target, so Q may have negative eigenvalues; the
    # sum 1 + χ² still falls when tokens are merged.
    assert plug_in(np.where(tokens == 4, 3, tokens)) <= plug_in(tokens) + 1e-12


def test_sum_sq_takes_any_scale_and_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = metrics.cooccurrence(np.random.default_rng(0).integers(7, size=(9, 5)), 7)
    expected = metrics.cooccurrence_sum_sq(table)
    monkeypatch.setattr(spectral, "ROW_BLOCK", 3)
    assert metrics.cooccurrence_sum_sq(torch.from_numpy(table) * 180) == pytest.approx(expected, abs=1e-12)


def test_halves_can_be_chosen() -> None:
    tokens = np.random.default_rng(0).integers(3, size=(8, 5))
    halves = np.arange(8) % 2
    sorted_tokens = np.concatenate([tokens[::2], tokens[1::2]])
    assert metrics.sum_sq_half(tokens, 3, halves) == metrics.sum_sq_half(sorted_tokens, 3)


@pytest.mark.parametrize("images", [100, 300])
def test_halves_remove_most_of_the_bias(images: int) -> None:
    rng = np.random.default_rng(images)
    classes, size, patches, rounds = 4, 12, 10, 60
    profiles = rng.dirichlet(np.full(size, 1.0), size=classes)
    truth = metrics.cooccurrence_sum_sq(profiles.T @ profiles / classes)
    plain, corrected = [], []
    for _ in range(rounds):
        labels = rng.integers(classes, size=images)
        uniform = rng.random((images, patches, 1))
        tokens = (uniform > profiles.cumsum(axis=1)[labels][:, None, :-1]).sum(axis=2)
        plain.append(metrics.cooccurrence_sum_sq(metrics.cooccurrence(tokens, size)))
        corrected.append(metrics.sum_sq_half(tokens, size))
    bias = np.mean(plain) - truth
    assert bias > 0
    assert abs(np.mean(corrected) - truth) < bias / 3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.alpha([[0, 0]]), DataError, "zeros"),
        (lambda: metrics.class_level([1, 2]), DataError, "2 non-empty"),
        (lambda: metrics.cooccurrence([[0], [1]], 2), DataError, "two patches"),
        (lambda: metrics.cooccurrence([[0, 2]], 2), DataError, "0..1"),
        (lambda: metrics.cooccurrence([[0, -1]], 2), DataError, "0..1"),
        (lambda: metrics.cooccurrence([[0.0, 1.0]], 2), DataError, "whole numbers"),
        (lambda: metrics.cooccurrence([0, 1], 2), DataError, "shape"),
        (lambda: metrics.cooccurrence(np.zeros((0, 4), dtype=int), 2), DataError, "shape"),
        (lambda: metrics.cooccurrence([[0, 1]], 0), ConfigError, "codebook size"),
        (lambda: metrics.cooccurrence_sum_sq([[1, 2, 3]]), DataError, "square"),
        (lambda: metrics.cooccurrence_sum_sq([[1, 2], [0, 1]]), DataError, "symmetric"),
        (lambda: metrics.cooccurrence_sum_sq([[1, -1], [-1, 1]]), DataError, "negative"),
        (lambda: metrics.sum_sq_half([[0, 1]], 2), DataError, "both halves"),
        (lambda: metrics.sum_sq_half([[0, 1], [1, 1]], 2, [0, 0]), DataError, "both halves"),
        (lambda: metrics.sum_sq_half([[0, 1], [1, 1]], 2, [0, 1, 0]), DataError, "one entry an image"),
    ],
)
def test_refusals(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
