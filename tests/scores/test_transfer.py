"""Known scores with labels: against plain loops, matrices and optimisers, and where the value is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.mixture import GaussianMixture

from clustermim.data import open_source
from clustermim.errors import DataError
from clustermim.scores import SCORES, TCASVariant, Tokens
from clustermim.scores.bags import split
from clustermim.scores.ranks import principal
from clustermim.scores.transfer import gbc, h_score, labels_of, leep, logistic_accuracy, logme, nleep, soft_leep
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def blobs(n: int, d: int, classes: int, apart: float, seed: int = 0) -> tuple[Floats, Ints]:
    """Centred features (n, d) of classes around means of their own, and the classes."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), generator.integers(classes, size=n - classes)])
    vectors = (
        generator.normal(size=(n, d)) * np.linspace(0.5, 2, d) + apart * generator.normal(size=(classes, d))[labels]
    )
    return vectors - vectors.mean(0), labels


def leep_by_hand(shares: Floats, labels: Ints) -> float:
    """The formula of Nguyen et al. in loops."""
    n, sources = shares.shape
    total = 0.0
    for image in range(n):
        expected = 0.0
        for source in range(sources):
            joint = sum(shares[i, source] for i in range(n) if labels[i] == labels[image]) / n
            marginal = sum(shares[i, source] for i in range(n)) / n
            expected += joint / marginal * shares[image, source] if marginal else 0
        total += math.log(expected)
    return total / n


def test_leep_is_that_of_the_formula() -> None:
    generator = np.random.default_rng(0)
    ids, labels = generator.integers(5, size=60), generator.integers(3, size=60)
    table = np.zeros((6, 3))  # the last token never occurs
    np.add.at(table, (ids, labels), 1)
    assert leep(table) == pytest.approx(leep_by_hand(np.eye(6)[ids], labels))
    assert leep(table) == pytest.approx(soft_leep(np.eye(6)[ids], labels))
    shares = generator.dirichlet(np.ones(4), 60)
    assert soft_leep(shares, labels) == pytest.approx(leep_by_hand(shares, labels))


def test_leep_where_it_is_known() -> None:
    assert leep([[4, 0], [3, 0], [0, 9]]) == 0
    assert leep([[2, 6], [1, 3]]) == pytest.approx(-(0.25 * math.log(4) + 0.75 * math.log(4 / 3)))  # H(class)
    assert leep([[3], [2]]) == 0


def test_nleep_is_leep_of_a_peers_mixture() -> None:
    vectors, labels = blobs(150, 12, 3, 1.0)
    kept = PCA(0.8, svd_solver="full").fit_transform(vectors)
    assert 1 < kept.shape[1] < 12
    shares = GaussianMixture(15, covariance_type="diag", random_state=0).fit(kept).predict_proba(kept)
    assert nleep(principal(vectors), labels) == pytest.approx(leep_by_hand(shares, labels), abs=1e-6)


def test_nleep_of_classes_apart_and_of_no_classes() -> None:
    vectors, labels = blobs(300, 5, 3, 50.0)
    assert nleep(principal(vectors), labels) == pytest.approx(0, abs=1e-6)
    vectors, labels = blobs(3000, 5, 2, 0.0)
    assert nleep(principal(vectors), labels) == pytest.approx(-math.log(2), abs=0.02)
    assert math.isfinite(nleep(principal(vectors[:4]), labels[:4]))  # fewer images than components


@pytest.mark.parametrize(("n", "d", "apart"), [(60, 5, 1.0), (60, 5, 0.2), (20, 40, 0.5)])
def test_logme_is_the_largest_evidence(n: int, d: int, apart: float) -> None:
    """The evidence as the density of y itself, N(0, 1/β + FFᵀ/α), maximised by a general optimiser."""
    vectors, labels = blobs(n, d, 3, apart)
    vectors += 0.3
    best = []
    for label in range(3):
        y = (labels == label).astype(float)

        def negative(logs: Floats, y: Floats = y) -> float:
            alpha, beta = np.exp(np.clip(logs, -20, 20))
            return -float(multivariate_normal.logpdf(y, cov=np.eye(n) / beta + vectors @ vectors.T / alpha)) / n

        starts = [(a, b) for a in (-1.0, 3.0, 8.0) for b in (0.0, 2.0)]
        best.append(-min(minimize(negative, start, method="Nelder-Mead").fun for start in starts))
    assert logme(principal(vectors), labels) == pytest.approx(np.mean(best), abs=2e-4)


def test_logme_prefers_features_that_tell_classes() -> None:
    found = [logme(principal(vectors), labels) for vectors, labels in (blobs(200, 5, 3, a) for a in (0.0, 0.5, 2.0))]
    assert found[0] < found[1] < found[2]
    labels = np.arange(30) % 3
    assert logme(principal(np.eye(3)[labels]), labels) > 3  # an exact fit has a value too


@pytest.mark.parametrize(("n", "d"), [(80, 6), (20, 30)])
def test_h_score_is_that_of_the_formula(n: int, d: int) -> None:
    vectors, labels = blobs(n, d, 3, 0.7)
    means = np.array([vectors[labels == label].mean(0) for label in labels])
    expected = np.trace(np.linalg.pinv(np.cov(vectors.T, bias=True), hermitian=True) @ np.cov(means.T, bias=True))
    assert h_score(principal(vectors), labels) == pytest.approx(expected)


def test_h_score_where_it_is_known() -> None:
    labels = np.arange(40) % 4
    vectors = np.eye(4)[labels]
    assert h_score(principal(vectors - vectors.mean(0)), labels) == pytest.approx(3)
    vectors, labels = blobs(20, 30, 3, 0.0)  # as many directions as images: all is told
    assert h_score(principal(vectors), labels) == pytest.approx(2)
    vectors, labels = blobs(4000, 3, 3, 0.0)
    assert h_score(principal(vectors), labels) == pytest.approx(0, abs=0.01)


def gbc_by_hand(vectors: Floats, labels: Ints) -> float:
    total, d = 0.0, vectors.shape[1]
    gaussians = []
    for label in np.unique(labels):
        members = vectors[labels == label]
        variances = [max(1e-4, np.mean((column - column.mean()) ** 2)) for column in members.T]
        gaussians.append((members.mean(0), np.mean(variances) * np.eye(d)))
    for i, (mean, one) in enumerate(gaussians):
        for j, (other_mean, other) in enumerate(gaussians):
            if i != j:
                middle, apart = (one + other) / 2, mean - other_mean
                distance = apart @ np.linalg.inv(middle) @ apart / 8
                volumes = [np.linalg.slogdet(matrix)[1] for matrix in (middle, one, other)]
                total -= math.exp(-distance - (volumes[0] - (volumes[1] + volumes[2]) / 2) / 2)
    return total


@pytest.mark.parametrize("d", [4, 100])
def test_gbc_is_that_of_the_formula(d: int) -> None:
    vectors, labels = blobs(300, d, 4, 0.3)
    axes = principal(vectors * np.where(labels == 1, 1.5, 1.0)[:, None])
    assert gbc(axes, labels) == pytest.approx(gbc_by_hand(axes[:, :64], labels))
    assert -12 < gbc(axes, labels) < -1e-6


def test_gbc_where_it_is_known() -> None:
    vectors, labels = blobs(300, 4, 3, 200.0)
    assert gbc(principal(vectors), labels) == pytest.approx(0, abs=1e-9)
    same = np.tile(np.random.default_rng(0).normal(size=(50, 4)), (3, 1))
    assert gbc(principal(same - same.mean(0)), np.repeat(np.arange(3), 50)) == pytest.approx(-6)


def test_logistic_regression_is_that_of_a_peer_on_the_bags_themselves() -> None:
    source = open_source("textures:?images=160&grid=4&patch=4&channels=3&classes=3&noise=0.4")
    tokens = Tokens(KMeansTokenizer(20, 4).fit(source), source, TCASVariant())
    ids, where = tokens.sample
    bags, labels = np.sqrt([np.bincount(row, minlength=20) / 16 for row in ids.numpy()]), source.labels[where.numpy()]
    expected = []
    for start in range(0, 160, 20):
        held = np.isin(np.arange(160), range(start, start + 20))
        model = LogisticRegression(max_iter=1000).fit(bags[~held], labels[~held])
        expected.append(balanced_accuracy_score(labels[held], model.predict(bags[held])))
    found = SCORES["logistic_accuracy"].measure(tokens).value
    assert found == pytest.approx(np.mean(expected), abs=0.02)  # an image on the boundary may fall to either side
    assert 0.4 < found < 1


def test_logistic_regression_where_it_is_known() -> None:
    parts = split(np.zeros((400, 2)))  # type: ignore[arg-type]
    vectors, labels = blobs(400, 5, 4, 30.0)
    assert logistic_accuracy(vectors, labels, parts) == 1
    vectors, labels = blobs(400, 5, 4, 0.0)
    assert logistic_accuracy(vectors, labels, parts) == pytest.approx(0.25, abs=0.08)
    with pytest.raises(DataError, match="all images but those of one part"):
        logistic_accuracy(vectors, (np.arange(400) < 50).astype(np.int64), parts)


def test_tokens_of_the_class_are_told_by_all_of_them() -> None:
    source = open_source("textures:?images=200&grid=3&patch=4&classes=4")
    tokens = Tokens(LabelTokenizer(patch_size=4).fit(source), source, TCASVariant())
    names = [name for name, row in SCORES.items() if row.needs_labels and row.on_request]
    found = {name: SCORES[name].measure(tokens).value for name in names}
    logme_value = found.pop("logme")
    exact = {"leep": 0, "nleep": 0, "h_score": 3, "gbc": 0, "logistic_accuracy": 1, "untrained_accuracy": 1}
    assert found == pytest.approx(exact, abs=1e-6)
    assert logme_value > 3


def test_classes_are_those_of_the_sampled_images() -> None:
    source = open_source("digits/test")
    tokens = Tokens(KMeansTokenizer(5, 4).fit(source), source, TCASVariant(), images=12)
    chosen = source.labels[tokens.sample[1].numpy()]
    labels = labels_of(tokens)
    assert labels.tolist() == [sorted(set(chosen)).index(label) for label in chosen]
    tokens.labels = np.zeros(len(source), dtype=np.int64)
    with pytest.raises(DataError, match="one class only"):
        labels_of(tokens)
