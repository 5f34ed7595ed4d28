"""Known scores without labels: against plain loops and other people's linear algebra, and where the value is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import fractional_matrix_power
from sklearn.metrics import mutual_info_score

from clustermim.data import open_source
from clustermim.errors import DataError
from clustermim.scores import SCORES, TCASVariant, Tokens
from clustermim.scores import ranks as module
from clustermim.scores.ranks import (
    alpha_req,
    centred,
    features,
    lidar,
    neighbour_mi,
    plain,
    principal,
    rankme,
    self_cluster,
    stable_rank,
)
from clustermim.tokenizers import KMeansTokenizer

Floats = NDArray[np.float64]
SHAPES = [(40, 7), (7, 40), (12, 12)]


def draw(*shape: int, seed: int = 0) -> Floats:
    """Numbers with a mean of their own, and columns of different length."""
    found = np.random.default_rng(seed).normal(0.3, 1, shape)
    return found * np.linspace(0.5, 2, shape[-1])


def white(n: int, d: int) -> Floats:
    """Vectors (n, d) with mean zero and covariance proportional to the identity."""
    rows = np.random.default_rng(1).normal(size=(n, d))
    return np.linalg.qr(rows - rows.mean(0))[0]


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_features_by_hand(images: int, patches: int, size: int, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(size, size=(images, patches))
    expected = [[math.sqrt(list(row).count(token) / patches) for token in np.unique(ids)] for row in ids]
    found = features(ids, size + 3)
    np.testing.assert_allclose(found.toarray(), expected)
    axes = principal(found)
    np.testing.assert_allclose(axes @ axes.T, np.array(expected) @ np.array(expected).T, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_principal_axes_are_a_rotation(shape: tuple[int, int]) -> None:
    vectors = draw(*shape)
    axes = principal(vectors)
    np.testing.assert_allclose(axes @ axes.T, vectors @ vectors.T, atol=1e-9)
    np.testing.assert_allclose(axes.T @ axes, np.diag(np.linalg.svd(vectors)[1] ** 2), atol=1e-9)
    assert principal(vectors[:, :1] @ vectors[:1]).shape == (shape[0], 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_rankme_is_that_of_the_formula(shape: tuple[int, int]) -> None:
    vectors = draw(*shape)
    values = np.linalg.svd(vectors)[1]
    total = 0.0
    for value in values:
        total -= value / sum(values) * math.log(value / sum(values))
    assert rankme(principal(vectors)) == pytest.approx(math.exp(total))


def test_rankme_where_it_is_known() -> None:
    assert rankme(principal(white(50, 6))) == pytest.approx(6)
    assert rankme(principal(np.outer(draw(9), draw(5)))) == pytest.approx(1)
    assert rankme(principal(np.diag([1.0, 1.0, 1e-9]))) == pytest.approx(2)  # rounding does not count


@pytest.mark.parametrize("shape", SHAPES)
def test_stable_rank_and_nesum_are_those_of_the_formulas(shape: tuple[int, int]) -> None:
    vectors = draw(*shape)
    expected = np.linalg.norm(vectors, "fro") ** 2 / np.linalg.norm(vectors, 2) ** 2
    assert stable_rank(principal(vectors)) == pytest.approx(expected)
    eigenvalues = np.linalg.eigvalsh(np.cov(vectors.T))
    assert stable_rank(principal(vectors - vectors.mean(0))) == pytest.approx(sum(eigenvalues) / max(eigenvalues))


def test_stable_rank_where_it_is_known() -> None:
    assert stable_rank(principal(white(50, 6))) == pytest.approx(6)
    assert stable_rank(principal(np.outer(draw(9), draw(5)))) == pytest.approx(1)
    assert stable_rank(principal(np.diag([2.0, 1.0, 1.0]))) == pytest.approx(1.5)


@pytest.mark.parametrize("size", [5, 30, 140])
def test_alpha_of_a_power_law_and_of_any_spectrum(size: int) -> None:
    steep = white(200, size) * np.arange(1, size + 1) ** -0.85
    assert alpha_req(principal(steep)) == pytest.approx(1.7)
    vectors = draw(200, size)
    vectors -= vectors.mean(0)
    eigenvalues = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
    left, right = np.zeros((2, 2)), np.zeros(2)  # normal equations
    for rank in range(4, min(size, 100) + 1):
        row = np.array([-math.log(rank), 1])
        left += np.outer(row, row) / rank
        right += row * math.log(eigenvalues[rank - 1]) / rank
    assert alpha_req(principal(vectors)) == pytest.approx(np.linalg.solve(left, right)[0])


def test_alpha_needs_two_eigenvalues_to_fit() -> None:
    with pytest.raises(DataError, match="α-ReQ needs 5 directions at least, not 4"):
        alpha_req(principal(draw(20, 4)))


@pytest.mark.parametrize("shape", SHAPES)
def test_self_cluster_is_the_mean_squared_cosine_above_that_of_random_directions(shape: tuple[int, int]) -> None:
    vectors = draw(*shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    n, d = shape
    cosines = [(vectors[i] @ vectors[j]) ** 2 for i in range(n) for j in range(n) if i != j]
    assert self_cluster(principal(vectors), d) == pytest.approx((np.mean(cosines) - 1 / d) / (1 - 1 / d))


def test_self_cluster_where_it_is_known() -> None:
    assert self_cluster(principal(np.ones((5, 4)) / 2), 4) == pytest.approx(1)
    assert self_cluster(np.eye(4), 4) == pytest.approx(-1 / 3)
    many = np.random.default_rng(0).normal(size=(2000, 8))
    assert self_cluster(principal(many / np.linalg.norm(many, axis=1, keepdims=True)), 8) == pytest.approx(0, abs=2e-3)
    for axes, d in ((np.ones((1, 1)), 4), (np.ones((5, 1)), 1)):
        with pytest.raises(DataError, match="two images and two tokens"):
            self_cluster(axes, d)


def lidar_by_hand(views: Floats) -> float:
    n, q, d = views.shape
    middle, between, within = views.reshape(-1, d).mean(0), np.zeros((d, d)), 1e-4 * np.eye(d)
    for image in views:
        mean = image.mean(0)
        between += np.outer(mean - middle, mean - middle) / n
        for view in image:
            within += np.outer(view - mean, view - mean) / (n * q)
    root = fractional_matrix_power(within, -0.5)
    shares = np.linalg.eigvalsh(root @ between @ root).clip(1e-15)
    shares /= shares.sum()
    return math.exp(-sum(share * math.log(share) for share in shares))


@pytest.mark.parametrize("shape", [(20, 4, 6), (4, 3, 15)])
def test_lidar_is_that_of_the_formula(shape: tuple[int, int, int]) -> None:
    views = draw(*shape)
    assert lidar(views) == pytest.approx(lidar_by_hand(views))
    turned = principal(views.reshape(-1, shape[2])).reshape(*shape[:2], -1)
    assert lidar(turned) == pytest.approx(lidar_by_hand(views))


def test_lidar_where_it_is_known() -> None:
    means = np.concatenate([np.eye(5), -np.eye(5)])  # five directions alike
    noise = np.concatenate([np.eye(8), -np.eye(8)]) / 10
    views = np.pad(means, ((0, 0), (0, 3)))[:, None] + noise
    assert lidar(views) == pytest.approx(5)
    with pytest.raises(DataError, match="one image only"):
        lidar(views[:1])


@pytest.mark.parametrize("k", [6, 300])
def test_lidar_of_tokens_is_that_of_bags_of_views(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 tokens are more than the ten images have views."""
    monkeypatch.setattr("clustermim.scores.collect.VIEWED", 10)
    source = open_source("textures:?images=40&grid=4&patch=4&channels=3&noise=0.3")
    tokens = Tokens(KMeansTokenizer(k, 4).fit(source), source, TCASVariant())
    assert tokens.many_views.shape == (8, 10, 16)
    bags = np.zeros((10, 8, k))
    for view, images in enumerate(tokens.many_views.tolist()):
        for image, ids in enumerate(images):
            for token in ids:
                bags[image, view, token] += 1 / 16
    assert SCORES["lidar"].measure(tokens).value == pytest.approx(lidar_by_hand(np.sqrt(bags)), rel=1e-6)


@pytest.mark.parametrize("k", [6, 200])
def test_rows_of_the_table_are_of_bags_of_the_sampled_images(k: int) -> None:
    source = open_source("textures:?images=60&grid=4&patch=4&channels=3&noise=0.3")
    tokens = Tokens(KMeansTokenizer(k, 4).fit(source), source, TCASVariant(), images=50)
    bags = np.sqrt([np.bincount(row, minlength=k) / 16 for row in tokens.sample[0].numpy()])
    assert bags.shape == (50, k)
    found = {name: SCORES[name].measure(tokens).value for name in ("rankme", "stable_rank", "nesum", "self_cluster")}
    assert found["rankme"] == pytest.approx(rankme(principal(bags)))
    assert found["stable_rank"] == pytest.approx(50 / np.linalg.norm(bags, 2) ** 2)
    eigenvalues = np.linalg.eigvalsh(np.cov(bags.T))
    assert found["nesum"] == pytest.approx(sum(eigenvalues) / max(eigenvalues))
    gram = np.linalg.norm(bags @ bags.T) ** 2
    assert found["self_cluster"] == pytest.approx((k * gram - 50 * (k + 49)) / ((k - 1) * 49 * 50))


def test_neighbours_by_hand() -> None:
    ids = np.random.default_rng(0).integers(3, size=(200, 12))
    ids[:, 1::2] = (ids[:, ::2] + (ids[:, 1::2] == 0)) % 3  # each second token mostly repeats the one before
    first, second = [], []
    for grid in ids.reshape(200, 3, 4):
        for row in range(3):
            for column in range(4):
                for below, beside in ((row, column + 1), (row + 1, column)):
                    if below < 3 and beside < 4:
                        first.append(grid[row, column])
                        second.append(grid[below, beside])
    entropies = mutual_info_score(first, first) + mutual_info_score(second, second)
    expected = 2 * mutual_info_score(first, second) / entropies
    assert neighbour_mi(ids, (3, 4)) == pytest.approx(expected, abs=2e-3)  # random pairs seem to say next to nothing
    assert expected > 0.03


def test_neighbours_that_say_all_and_nothing() -> None:
    generator = np.random.default_rng(0)
    same = np.repeat(generator.integers(10, size=(2000, 1)), 9, axis=1)
    assert neighbour_mi(same, (3, 3)) == pytest.approx(1, abs=0.01)
    assert neighbour_mi(generator.integers(200, size=(2000, 9)), (3, 3)) == pytest.approx(0, abs=0.01)
    with pytest.raises(DataError, match="no neighbours"):
        neighbour_mi(same[:, :1], (1, 1))
    with pytest.raises(DataError, match="one token only"):
        neighbour_mi(same * 0, (3, 3))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clustermim.scores.base.MEMORY", 1e4)
    ids = np.arange(400).reshape(20, 20)
    with pytest.raises(DataError, match="products of 20 bags of 400 tokens would take"):
        features(ids, 400)
    with pytest.raises(DataError, match="pairs of 400 tokens would take"):
        neighbour_mi(ids, (4, 5))


def test_a_large_codebook_costs_as_much_as_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    before = np.linalg.eigh
    monkeypatch.setattr(module.np.linalg, "eigh", lambda gram: seen.append(gram.shape) or before(gram))
    ids = np.random.default_rng(0).integers(65_536, size=(30, 64))
    assert 29 < rankme(principal(features(ids, 65_536))) <= 30
    assert seen == [(30, 30)]


def test_images_alike_have_no_covariance() -> None:
    source = open_source("textures:?images=20&grid=2&patch=4")
    tokens = Tokens(KMeansTokenizer(1, 4).fit(source), source, TCASVariant())
    assert plain(tokens).shape == (20, 1)
    with pytest.raises(DataError, match="the same tokens"):
        centred(tokens)
