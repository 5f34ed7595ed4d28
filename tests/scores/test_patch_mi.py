"""Mutual information of patches: what tokens of one image tell of each other, without labels and without places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score

from clustermim.errors import DataError
from clustermim.scores import by_positions, mutual_information, patch_mi
from clustermim.scores.spectral import pair_counts


def counted(tokens: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs in two halves of the images, and tokens by place."""
    ids = torch.from_numpy(tokens)
    halves = [pair_counts(part, size).numpy() for part in (ids[::2], ids[1::2])]
    places = np.stack([np.bincount(column, minlength=size) for column in tokens.T])
    return halves[0], halves[1], places


def test_mutual_information_of_sklearn() -> None:
    table = np.random.default_rng(0).integers(0, 9, (4, 5)).astype(float)
    assert mutual_information(table) == pytest.approx(mutual_info_score(None, None, contingency=table), abs=1e-12)


def test_pairs_by_positions_are_all_pairs_of_different_places() -> None:
    counts = np.random.default_rng(1).integers(1, 9, (5, 3)).astype(float)
    shares = counts / counts.sum(1, keepdims=True)
    slow = sum(np.outer(shares[i], shares[j]) for i in range(5) for j in range(5) if i != j)
    assert by_positions(counts) == pytest.approx(slow, abs=1e-12)


def test_tokens_that_say_where_they_are_have_none() -> None:
    generator = np.random.default_rng(2)
    where = np.tile(np.arange(8), (4000, 1))  # each place has a token of its own …
    noisy = np.where(generator.random(where.shape) < 0.3, generator.integers(8, size=where.shape), where)  # … nearly
    first, second, places = counted(noisy, 8)
    assert mutual_information((first + second).astype(float)) > 0.01
    assert patch_mi(first, second, places) == pytest.approx(0, abs=2e-3)


def test_tokens_that_are_the_class_are_related() -> None:
    tokens = np.repeat(np.random.default_rng(3).integers(10, size=(500, 1)), 6, axis=1)
    assert patch_mi(*counted(tokens, 10)) == pytest.approx(1, abs=0.02)


def test_rare_pairs_do_not_flatter() -> None:
    tokens = np.random.default_rng(4).integers(100, size=(400, 16))  # no relation, and few pairs of each
    first, second, places = counted(tokens, 100)
    naive = mutual_information((first + second).astype(float)) / np.log(100)
    assert naive > 0.01
    assert abs(patch_mi(first, second, places)) < naive / 4


def test_one_token_has_none_and_halves_are_needed() -> None:
    assert patch_mi([[6]], [[6]], [[2], [2]]) == 0
    with pytest.raises(DataError, match="all zeros"):
        patch_mi([[6]], [[0]], [[2], [2]])
