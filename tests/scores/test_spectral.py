"""α and Σλ² from tokens: definitions, inequalities, and the correction by halves."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from clustermim import scores as metrics
from clustermim.data import open_source
from clustermim.errors import DataError
from clustermim.scores import base, spectral
from clustermim.tokenizers import RandomTokenizer

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
def test_alpha_does_not_depend_on_names_and_has_its_range(table: Array, random: Any) -> None:
    rows, columns = list(range(table.shape[0])), list(range(table.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    alpha = metrics.alpha(table)
    assert metrics.alpha(table[rows][:, columns]) == pytest.approx(alpha, abs=1e-12)
    assert -1e-12 <= alpha <= 1 - 1 / np.count_nonzero(table.sum(axis=0)) + 1e-12
    assert metrics.alpha(torch.from_numpy(table)) == alpha


@given(st.integers(0, 2**32 - 1))
def test_sum_sq_is_that_of_the_eigenvalues(seed: int) -> None:
    """A random mask graph."""
    rng = np.random.default_rng(seed)
    J = rng.random((6, 4)) ** 3
    J /= J.sum()
    d, p = J.sum(axis=1), J.sum(axis=0)
    Q = J.T @ (J / d[:, None])
    eigenvalues = np.linalg.eigvalsh(Q / np.sqrt(np.outer(p, p)))
    assert metrics.cooccurrence_sum_sq(Q) == pytest.approx(np.sum(eigenvalues**2), abs=1e-12)


def pairs_of(tokens: Array, size: int = 5) -> torch.Tensor:
    return metrics.pair_counts(torch.from_numpy(tokens.copy()), size)


def plug_in(tokens: Array) -> float:
    return metrics.cooccurrence_sum_sq(pairs_of(tokens))


def half_corrected(tokens: Array, size: int = 5) -> float:
    half = len(tokens) // 2
    return metrics.sum_sq_half(pairs_of(tokens[:half], size), pairs_of(tokens[half:], size))


def pairs_one_by_one(tokens: Array, size: int) -> Array:
    table = np.zeros((size, size))
    for image in tokens:
        for i, j in permutations(range(tokens.shape[1]), 2):
            table[image[i], image[j]] += 1
    return table


@pytest.mark.parametrize("size", [5, 200])
@given(tokens=token_grids)
def test_all_pairs_are_counted(tokens: Array, size: int) -> None:
    """Of codebooks with and without unused tokens."""
    table = pairs_of(tokens, size)
    np.testing.assert_array_equal(table, pairs_one_by_one(tokens, size))
    compact = metrics.cooccurrence_sum_sq(pairs_of(tokens))
    assert metrics.cooccurrence_sum_sq(table) == pytest.approx(compact, abs=1e-12)
    assert 1 - 1e-12 <= compact <= 5 + 1e-12


@pytest.mark.parametrize("size", [5, 200])
def test_counting_in_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(5, size=(11, 6))
    expected = pairs_of(tokens, size)
    monkeypatch.setattr(spectral, "CHUNK", 20)
    assert torch.equal(pairs_of(tokens, size), expected)


@given(token_grids, st.permutations(range(5)))
def test_sum_sq_does_not_depend_on_token_names_or_patch_order(tokens: Array, names: list[int]) -> None:
    renamed = np.array(names)[tokens][:, ::-1]
    assert plug_in(renamed) == pytest.approx(plug_in(tokens), abs=1e-12)
    assert half_corrected(renamed) == pytest.approx(half_corrected(tokens), abs=1e-12)


@given(token_grids)
def test_merging_tokens_lowers_sum_sq(tokens: Array) -> None:
    # Two different patches of an image are not a view and its target, so Q may have negative eigenvalues; the
    # sum 1 + χ² still falls when tokens are merged.
    assert plug_in(np.where(tokens == 4, 3, tokens)) <= plug_in(tokens) + 1e-12


def test_sum_sq_takes_any_scale_and_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pairs_of(np.random.default_rng(0).integers(7, size=(9, 5)), 7)
    expected = metrics.cooccurrence_sum_sq(table)
    monkeypatch.setattr(spectral, "ROW_BLOCK", 3)
    assert metrics.cooccurrence_sum_sq(table.double() / 180) == pytest.approx(expected, abs=1e-12)


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
        plain.append(metrics.cooccurrence_sum_sq(pairs_of(tokens, size)))
        corrected.append(half_corrected(tokens, size))
    bias = np.mean(plain) - truth
    assert bias > 0
    assert abs(np.mean(corrected) - truth) < bias / 3


def test_of_a_large_codebook_only_tokens_that_occur_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    few = open_source("textures:?images=40&grid=4&patch=4&channels=3&classes=4")
    tokenizer = RandomTokenizer(k=600, patch_size=4).fit(few)
    expected = metrics.score(tokenizer, few, scores=["sum_sq"]).values
    monkeypatch.setattr(spectral, "MOST_TOKENS", 100)
    assert metrics.score(tokenizer, few, scores=["sum_sq"]).values == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(base, "MEMORY", 1e6)
    found = metrics.score(tokenizer, few, scores=["sum_sq"])
    assert math.isnan(found.values["sum_sq"])
    assert "tokens would take" in found.notes["sum_sq"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.alpha([[0, 0]]), "zeros"),
        (lambda: metrics.alpha([1, 2]), "2 non-empty"),
        (lambda: metrics.cooccurrence_sum_sq([[1, 2, 3]]), "square"),
        (lambda: metrics.cooccurrence_sum_sq([[1, 2], [0, 1]]), "symmetric"),
        (lambda: metrics.cooccurrence_sum_sq([[1, -1], [-1, 1]]), "negative"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()
