"""Nearest neighbours against scikit-learn's, and what happens among equals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

import clustermim.evaluation.frozen as module
from clustermim.errors import ConfigError
from clustermim.evaluation.features import Features
from clustermim.evaluation.frozen import knn_features, top_k, vote, whiten


def features(count: int, seed: int, dim: int = 8, classes: int = 5) -> Features:
    centres = np.random.default_rng(7).normal(size=(classes, dim))
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    values = centres[labels] + random.normal(size=(count, dim))
    return Features(torch.from_numpy(values.astype(np.float32)), torch.from_numpy(labels))


@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize("count", [60, 3003])
def test_votes_are_those_of_scikit_learn(k: int, count: int) -> None:
    train, test = features(count, 0), features(200, 1)
    model = KNeighborsClassifier(k, metric="cosine").fit(train.values.double().numpy(), train.labels.numpy())
    expected = model.predict(test.values.double().numpy())
    assert np.array_equal(vote(train.values, train.labels, test.values, k, None, 5).numpy(), expected)
    accuracy = model.score(test.values.double().numpy(), test.labels.numpy())
    result = knn_features(train, test, k, temperature=None)
    assert result.accuracy == pytest.approx(accuracy)
    assert result.details == {"protocol": "knn", "k": k, "temperature": None, "train_images": count, "classes": 5}


def test_weighted_votes_are_those_of_scikit_learn() -> None:
    train, test = features(1500, 0), features(200, 1)
    model = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    model.fit(train.values.double().numpy(), train.labels.numpy())
    expected = model.predict(test.values.double().numpy())
    assert np.array_equal(vote(train.values, train.labels, test.values, 20, 0.07, 5).numpy(), expected)
    result = knn_features(train, test).to_dict()
    assert (result["protocol"], result["k"], result["temperature"]) == ("knn", 20, 0.07)


def test_the_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = features(700, 0), features(90, 1)
    whole = knn_features(train, test)
    monkeypatch.setattr(module, "_CHUNK", 1000)
    assert knn_features(train, test) == whole


@given(st.integers(1, 4), st.integers(1, 200), st.data())
def test_top_k_are_the_first_of_a_stable_order(rows: int, length: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(length, 5)))
    values = data.draw(st.integers(1, 6))  # few values, many equals
    similarity = torch.randint(values, (rows, length), generator=torch.Generator().manual_seed(length)).float()
    found, indices = top_k(similarity, k)
    expected, order = similarity.sort(dim=1, descending=True, stable=True)
    assert torch.equal(found, expected[:, :k])
    assert torch.equal(similarity.gather(1, indices), found)
    assert torch.equal(indices.sort(dim=1).values, order[:, :k].sort(dim=1).values)


@pytest.mark.parametrize("length", [640, 1001, 5000])
def test_top_k_in_long_rows(length: int) -> None:
    similarity = torch.rand((20, length), generator=torch.Generator().manual_seed(0))
    expected = similarity.topk(10, dim=1)
    found, indices = top_k(similarity, 10)
    assert torch.equal(found, expected.values)
    assert torch.equal(indices, expected.indices)


def test_equal_images_of_different_classes() -> None:
    """The first in the train set are the neighbours, and of equal votes the first class wins."""
    train = Features(torch.ones(6, 2), torch.tensor([2, 1, 1, 0, 0, 0]))
    test = Features(torch.ones(1, 2), torch.tensor([1]))
    assert vote(train.values, train.labels, test.values, 1, 0.07, 3).tolist() == [2]
    assert vote(train.values, train.labels, test.values, 2, 0.07, 3).tolist() == [1]
    assert vote(train.values, train.labels, test.values, 3, 0.07, 3).tolist() == [1]
    assert vote(train.values, train.labels, test.values, 6, 0.07, 3).tolist() == [0]


def test_only_the_direction_counts() -> None:
    train, test = features(300, 0), features(50, 1)
    scaled = train._replace(values=train.values * torch.logspace(-3, 3, 300)[:, None])
    assert knn_features(scaled, test).accuracy == knn_features(train, test).accuracy
    zeros = Features(torch.zeros(3, 8), torch.tensor([0, 1, 2]))
    assert 0 <= knn_features(train, zeros).accuracy <= 1


def stretched(count: int, seed: int) -> Features:
    """Classes that differ along axes of little variance; one feature is a sum of others, one is constant."""
    found, noise = features(count, seed), np.random.default_rng(seed + 10).normal(size=(count, 2))
    values = np.concatenate([found.values.double().numpy() * np.logspace(-1.5, 0, 8), 20 * noise], axis=1) + 3
    values = np.concatenate([values, values[:, :4].sum(axis=1, keepdims=True), np.full((count, 1), 7.0)], axis=1)
    return found._replace(values=torch.from_numpy(values).float())


def test_whitened_features_are_those_of_numpy() -> None:
    train, test = stretched(900, 0), stretched(300, 1)
    values, queries = (part.values.double().numpy() for part in (train, test))
    mean = values.mean(axis=0)
    _, sizes, axes = np.linalg.svd(values - mean, full_matrices=False)
    kept = sizes**2 > 1e-6 * sizes[0] ** 2
    assert kept.sum() == 10  # of twelve
    scaling = axes[kept].T / sizes[kept] * np.sqrt(len(values))
    expected = [(part - mean) @ scaling for part in (values, queries)]
    found = whiten(train.values, test.values)
    for ours, theirs in zip(found, expected, strict=True):  # up to a rotation
        np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=2e-3)
    np.testing.assert_allclose((found[0].T @ found[0] / 900).diagonal().sort().values, [0, 0] + [1] * 10, atol=1e-3)
    model = KNeighborsClassifier(20, metric="cosine").fit(expected[0], train.labels.numpy())
    result = knn_features(train, test, temperature=None)
    assert result.whitened is not None
    assert result.whitened.accuracy == pytest.approx(model.score(expected[1], test.labels.numpy()), abs=1e-12)
    assert result.whitened.accuracy > result.accuracy + 0.2
    assert result.to_dict()["whitened"]["accuracy"] == result.whitened.accuracy


def test_whitening_is_learned_on_train_alone() -> None:
    train, test = features(300, 0), features(40, 1)
    other = test.values * 100 + 5
    assert torch.equal(whiten(train.values, test.values)[0], whiten(train.values, other)[0])
    one, all_of_them = whiten(train.values, test.values[:1])[1], whiten(train.values, test.values)[1]
    torch.testing.assert_close(one, all_of_them[:1])


def test_constant_features_are_not_blown_up() -> None:
    values = torch.full((50, 4), 1000.1)
    assert all(float(part.abs().max()) == 0 for part in whiten(values, values))


def test_classes_are_numbered_with_gaps() -> None:
    train = Features(torch.eye(3), torch.tensor([0, 4, 9]))
    result = knn_features(train, Features(torch.eye(3)[:2], torch.tensor([0, 4])), k=1)
    assert (result.accuracy, result.details["classes"]) == (1.0, 3)


def test_what_has_no_neighbours() -> None:
    train, test = features(10, 0), features(5, 1)
    for k in (0, 11):
        with pytest.raises(ConfigError, match=f"--k {k} neighbours cannot be had from 10 train images"):
            knn_features(train, test, k=k)
    with pytest.raises(ConfigError, match="--temperature 0"):
        knn_features(train, test, k=3, temperature=0)
