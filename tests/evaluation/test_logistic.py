"""The linear probe against scikit-learn's, and its protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import clustermim.evaluation.frozen as module
from clustermim.data import open_source
from clustermim.errors import DataError
from clustermim.evaluation.features import Features
from clustermim.evaluation.frozen import (
    GRID,
    choose_l2,
    fit_logistic,
    held_out,
    objective,
    predict,
    principal_axes,
    probe_features,
)


def blobs(count: int, dim: int, classes: int, seed: int = 0, spread: float = 2.0) -> Features:
    """Classes that overlap, and features that are correlated and of very different size."""
    random = np.random.default_rng(7)  # the same classes for any seed
    centres, mixing = random.normal(size=(classes, dim)), random.normal(size=(dim, dim))
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    values = (centres[labels] + spread * random.normal(size=(count, dim))) @ mixing * np.logspace(-2, 2, dim) + 5
    return Features(torch.from_numpy(values.astype(np.float32)), torch.from_numpy(labels))


def total(values: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, l2: float) -> float:
    logits = values.double() @ weight.double().T + bias.double().flatten()
    return float(F.cross_entropy(logits, labels) + l2 / 2 * weight.double().square().sum())


def sklearn_fit(values: Tensor, labels: Tensor, l2: float) -> LogisticRegression:
    model = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-9, max_iter=10_000)
    return model.fit(values.double().numpy(), labels.numpy())


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_optimum_is_that_of_scikit_learn(l2: float, classes: int) -> None:
    features = blobs(800, 12, classes)
    values = (features.values - features.values.mean(dim=0)) / features.values.std(dim=0, correction=0)
    axes = principal_axes(features.values)
    model = fit_logistic(axes.turn(features.values), features.labels, classes, l2)
    theirs = sklearn_fit(values, features.labels, l2 if classes > 2 else l2 / 2)
    weight, bias = torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_)
    ours = (model[:, :-1] @ axes.rotation.T).double(), model[:, -1].double()
    if classes == 2:  # theirs has one column, the difference of ours
        ours = ours[0][1:] - ours[0][:1], ours[1][1:] - ours[1][:1]
    torch.testing.assert_close(ours[0], weight, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(ours[1], bias, atol=2e-3, rtol=2e-3)
    if classes > 2:
        found = total(values, features.labels, *ours, l2)
        assert found == pytest.approx(total(values, features.labels, weight, bias, l2), abs=1e-6)


def test_the_optimum_on_real_pixels() -> None:
    train, test = open_source("digits/train"), open_source("digits/test")
    values, labels = digits(train)
    axes = principal_axes(values)
    turned = axes.turn(values)
    theirs = sklearn_fit(turned, labels, 1e-4)
    model = fit_logistic(turned, labels, 10, 1e-4)
    found = total(turned, labels, model[:, :-1], model[:, -1], 1e-4)
    best = total(turned, labels, torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_), 1e-4)
    assert best - 1e-6 < found < best + 1e-4
    unseen, truth = digits(test)
    ours = (predict(model, axes.turn(unseen)) == truth).double().mean()
    assert float(ours) == pytest.approx(theirs.score(axes.turn(unseen).numpy(), truth.numpy()), abs=0.006)


def digits(source: Any) -> tuple[Tensor, Tensor]:
    batch = source.read(range(len(source)))
    return batch.images.flatten(1).float() / 255, batch.labels


def test_decisions_in_double_precision() -> None:
    features = blobs(500, 8, 4)
    values = principal_axes(features.values.double()).turn(features.values.double())
    model = fit_logistic(values, features.labels, 4, 1e-3)
    theirs = sklearn_fit(values, features.labels, 1e-3)
    expected = theirs.decision_function(values.numpy())
    np.testing.assert_allclose((values @ model[:, :-1].T + model[:, -1]).numpy(), expected, atol=2e-3)


def test_a_warm_start_changes_nothing_but_the_way() -> None:
    features = blobs(600, 10, 3)
    values = principal_axes(features.values.double()).turn(features.values.double())  # float32 rounds at 1e-7 itself
    cold = fit_logistic(values, features.labels, 3, 1e-3)
    far = torch.cat([torch.ones(3, 10), torch.zeros(3, 1)], dim=1).double()
    warm = fit_logistic(values, features.labels, 3, 1e-3, start=far)
    found, expected = (total(values, features.labels, model[:, :-1], model[:, -1], 1e-3) for model in (warm, cold))
    assert found == pytest.approx(expected, abs=1e-7)
    torch.testing.assert_close(warm[:, :-1], cold[:, :-1], atol=1e-2, rtol=1e-2)


def test_gradient_is_that_of_autograd() -> None:
    features = blobs(50, 6, 4)
    values, both = features.values.double(), torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    weight, bias = both[:, :-1], both[:, -1]
    loss = F.cross_entropy(values @ weight.T + bias, features.labels) + 0.3 / 2 * weight.square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    found, gradient = objective(both.detach(), values, features.labels, 0.3)
    assert float(found) == pytest.approx(loss.item())
    torch.testing.assert_close(gradient, both.grad)


def test_the_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    features, model = blobs(50, 6, 4), torch.randn(4, 7, dtype=torch.float64)
    whole = objective(model, features.values.double(), features.labels, 0.3)
    monkeypatch.setattr(module, "_LOGITS", 28)
    torch.testing.assert_close(objective(model, features.values.double(), features.labels, 0.3), whole)


def test_the_path_of_penalties_leads_to_each_optimum() -> None:
    """Each solution starts the next; scikit-learn solves every one from the beginning."""
    features = blobs(1000, 12, 5)
    values = principal_axes(features.values).turn(features.values)
    kept = ~held_out(features.labels, 0)
    for l2, (accuracy, model) in choose_l2(values, features.labels, 5, seed=0).items():
        theirs = sklearn_fit(values[kept], features.labels[kept], l2)
        best = total(values[kept], features.labels[kept], *map(torch.from_numpy, (theirs.coef_, theirs.intercept_)), l2)
        found = total(values[kept], features.labels[kept], model[:, :-1], model[:, -1], l2)
        assert best - 1e-7 < found < best + 2e-6, l2
        assert accuracy == pytest.approx(theirs.score(values[~kept].numpy(), features.labels[~kept].numpy()), abs=0.011)


def test_axes_are_standardised_and_uncorrelated() -> None:
    features = blobs(2000, 12, 3)
    axes = principal_axes(features.values)
    turned = axes.turn(features.values).double()
    covariance = turned.T @ turned / len(turned)
    assert float(turned.mean(dim=0).abs().max()) < 1e-4
    assert float((covariance - covariance.diag().diag()).abs().max()) < 1e-3
    assert float(covariance.trace()) == pytest.approx(12, abs=1e-2)
    torch.testing.assert_close(axes.rotation.T @ axes.rotation, torch.eye(12), atol=1e-5, rtol=0)


def test_constant_features_say_nothing() -> None:
    """Neither zeros nor rounding errors of a large constant are blown up."""
    features = blobs(400, 6, 3)
    noise = 1 + 1e-7 * torch.randint(0, 2, (400, 1))
    values = torch.cat([features.values, torch.zeros(400, 1), 1000 * noise], dim=1)
    assert float(principal_axes(values).turn(values).abs().max()) < 20
    padded = probe_features(Features(values, features.labels), Features(values, features.labels))
    plain = probe_features(features, features)
    assert padded.accuracy == pytest.approx(plain.accuracy, abs=0.01)


def test_held_out_tenth_is_stratified() -> None:
    labels = torch.tensor([0] * 500 + [1] * 303 + [2] * 40 + [3] * 7)
    mask = held_out(labels, seed=0)
    assert int(mask.sum()) == 85
    for label, count in ((0, 500), (1, 303), (2, 40), (3, 7)):
        assert abs(int(mask[labels == label].sum()) - count / 10) <= 1
    assert torch.equal(held_out(labels, 0), mask)
    assert not torch.equal(held_out(labels, 1), mask)
    assert int(held_out(labels[:10], 0).sum()) == 1


def test_protocol() -> None:
    train, test = blobs(1500, 10, 4), blobs(700, 10, 4, seed=1)
    result = probe_features(train, test).to_dict()
    assert result["protocol"] == "lbfgs"
    assert (result["train_images"], result["test_images"], result["classes"]) == (1500, 700, 4)
    accuracies = result["held_out_accuracy"]
    assert list(accuracies) == [f"{l2:g}" for l2 in GRID[: len(accuracies)]]
    best = max(accuracies.values())
    assert result["l2"] == next(l2 for l2 in GRID if accuracies[f"{l2:g}"] == best)
    assert len(accuracies) == len(GRID) or all(last < best for last in list(accuracies.values())[-2:])
    assert result["interval"][0] < result["accuracy"] < result["interval"][1]
    assert result == probe_features(train, test).to_dict()
    theirs = sklearn_fit(principal_axes(train.values).turn(train.values), train.labels, result["l2"])
    turned = principal_axes(train.values).turn(test.values)
    assert result["accuracy"] == pytest.approx(theirs.score(turned.numpy(), test.labels.numpy()), abs=0.005)


def test_test_images_do_not_choose() -> None:
    train, test = blobs(600, 8, 3), blobs(300, 8, 3, seed=1)
    wrong = test._replace(labels=(test.labels + 1) % 3)
    first, second = probe_features(train, test).details, probe_features(train, wrong).details
    assert first["l2"] == second["l2"]
    assert first["held_out_accuracy"] == second["held_out_accuracy"]


def test_noise_asks_for_a_strong_penalty() -> None:
    """With more features than images, hardly any penalty fits the noise."""
    train, test = blobs(150, 100, 2, spread=6.0), blobs(500, 100, 2, seed=1, spread=6.0)
    assert probe_features(train, test).details["l2"] >= 1e-2
    tried = choose_l2(principal_axes(train.values).turn(train.values), train.labels, 2, seed=0)
    assert all(torch.isfinite(model[:, :-1]).all() for _, model in tried.values())


def test_a_common_class_does_not_end_the_search() -> None:
    """Under a strong penalty all images are of the most common class; equals are not worse."""
    labels = torch.cat([torch.zeros(950), torch.ones(50)]).long()
    values = labels[:, None] + 0.2 * torch.randn((1000, 1), generator=torch.Generator().manual_seed(0))
    tried = choose_l2(principal_axes(values).turn(values), labels, 2, seed=0)
    accuracies = [accuracy for accuracy, _ in tried.values()]
    assert accuracies[0] == 0.95
    assert max(accuracies) == 1.0


def test_classes_that_separate_and_classes_without_images() -> None:
    labels = torch.tensor([0, 5, 9]).repeat(20)
    values = torch.stack([labels == 0, labels == 5, labels == 9], dim=1).float()
    result = probe_features(Features(values, labels), Features(values[:7], labels[:7]))
    assert (result.accuracy, result.details["classes"]) == (1.0, 3)
    assert result.interval[1] == 1.0


def test_what_cannot_be_probed() -> None:
    few = blobs(9, 3, 2)
    with pytest.raises(DataError, match="9 images, too few to hold out a tenth: at least 10"):
        probe_features(few, few)
