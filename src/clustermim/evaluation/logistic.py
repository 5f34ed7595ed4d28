"""The linear probe: multinomial logistic regression on frozen features, solved to its optimum by L-BFGS.

    minimise over W (K, D) and b (K,):   mean cross-entropy(W x + b, label) + (l2 / 2)·‖W‖²

x are features standardised as train is. l2 is chosen on a held-out tenth of train; then all of train is fitted.
To be fast, features are turned into their principal axes, which changes neither the minimum nor ‖W‖. There the
curvature of the loss is nearly diagonal, about variance / K + l2, and is scaled away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clustermim.errors import DataError
from clustermim.evaluation.accuracy import Accuracy, accuracy_of
from clustermim.evaluation.features import Features, check_pair

# Strongest first: each solution starts the next, and of equally good ones the strongest is taken.
GRID = tuple(10.0**-power for power in range(9))  # 1 to 1e-8

_PARTS = 10  # one of so many is held out
_PATIENCE = 2  # values of l2 in a row that are worse than the best before weaker ones, the slowest, are left out


class Logistic(NamedTuple):
    """A fitted linear classifier."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K, 1)

    @classmethod
    def split(cls, both: Tensor) -> Logistic:
        """From one matrix (K, D + 1), the bias in its last column."""
        return cls(both[:, :-1], both[:, -1:])

    def predict(self, values: Tensor) -> Tensor:
        """The most likely class (n,) of features (n, D); of equals the first."""
        return torch.addmm(self.bias, self.weight, values.T).argmax(dim=0)


class Axes(NamedTuple):
    """How features are standardised and turned."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)
    rotation: Tensor  # (D, D)

    def turn(self, values: Tensor) -> Tensor:
        """Features (n, D) in these axes (n, D)."""
        return ((values - self.mean) / self.std) @ self.rotation


def probe_features(train: Features, test: Features, seed: int = 0) -> Accuracy:
    """Accuracy on test of the best linear classifier of train, and all that defines it."""
    train, test = check_pair(train, test)
    count = len(train.labels)
    if count < _PARTS:
        raise DataError(f"the train set has {count} images, too few to hold out a tenth: at least {_PARTS} are needed")
    present, labels = torch.unique(train.labels, return_inverse=True)  # a class without images would have no optimum
    if len(present) < 2:
        raise DataError("all images of the train set are of one class: a probe needs at least two")
    axes = principal_axes(train.values)
    values = axes.turn(train.values)
    tried = choose_l2(values, labels, len(present), seed)
    best = max(tried, key=lambda l2: tried[l2][0])  # the first, hence strongest, of equals
    model = fit_logistic(values, labels, len(present), best, start=tried[best][1])
    correct = int((present[model.predict(axes.turn(test.values))] == test.labels).sum())
    chosen = {"l2": best, "held_out_accuracy": {f"{l2:g}": accuracy for l2, (accuracy, _) in tried.items()}}
    counts = {"train_images": count, "classes": len(present)}
    return accuracy_of(correct, len(test.labels), protocol="lbfgs", **chosen, **counts)


def principal_axes(values: Tensor) -> Axes:
    """The principal axes of standardised features (n, D)."""
    std, mean = torch.std_mean(values, dim=0, correction=0)
    std = torch.where(std > 1e-6 * mean.abs(), std, torch.ones_like(std))  # below are rounding errors of a constant
    scaled = (values - mean) / std
    covariance = (scaled.T @ scaled).double() / len(values)
    return Axes(mean, std, torch.linalg.eigh(covariance).eigenvectors.to(values.dtype))


def choose_l2(values: Tensor, labels: Tensor, classes: int, seed: int) -> dict[float, tuple[float, Logistic]]:
    """For each l2 tried, accuracy on a held-out tenth of train and the classifier of the rest."""
    held = held_out(labels, seed)
    tried: dict[float, tuple[float, Logistic]] = {}
    model, best, worse = None, 0.0, 0
    for l2 in GRID:
        model = fit_logistic(values[~held], labels[~held], classes, l2, start=model)
        accuracy = int((model.predict(values[held]) == labels[held]).sum()) / int(held.sum())
        tried[l2] = accuracy, model
        worse = worse + 1 if accuracy < best else 0
        best = max(best, accuracy)
        if worse == _PATIENCE:
            break
    return tried


def held_out(labels: Tensor, seed: int) -> Tensor:
    """A mask (n,) of a random tenth of the images, each class in proportion."""
    # Class after class, at random inside a class: every tenth of this row is a fair share of each.
    row = np.lexsort((np.random.default_rng(seed).random(len(labels)), labels.cpu().numpy()))
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[torch.from_numpy(row[_PARTS // 2 :: _PARTS])] = True
    return mask.to(labels.device)


def fit_logistic(values: Tensor, labels: Tensor, classes: int, l2: float, start: Logistic | None = None) -> Logistic:
    """The minimum over W and b of mean cross-entropy + (l2/2)·‖W‖² for features (n, D) and labels (n,) < K.

    Any features will do; it is fast for those of `principal_axes`. `start` is where the search begins.
    """
    # One more column for the bias, whose feature is 1 and which is not penalised.
    curvature = torch.cat([values.square().mean(dim=0) / classes + l2, values.new_full((1,), 1 / classes)])
    scale = curvature.rsqrt()  # (D + 1,)
    begin = values.new_zeros((classes, len(scale))) if start is None else torch.cat([start.weight, start.bias], dim=1)
    scaled = begin / scale  # (K, D + 1)
    # The loss decides when it ends: where classes separate, gradients vanish long before the minimum.
    limits: dict[str, Any] = {"max_iter": 2000, "max_eval": 4000, "tolerance_grad": 1e-7, "tolerance_change": 1e-8}
    optimizer = torch.optim.LBFGS([scaled], history_size=20, line_search_fn="strong_wolfe", **limits)

    def closure() -> float:
        loss, gradient = objective(Logistic.split(scaled * scale), values, labels, l2)
        scaled.grad = gradient * scale
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return Logistic.split(scaled * scale)


def objective(model: Logistic, values: Tensor, labels: Tensor, l2: float) -> tuple[float, Tensor]:
    """Mean cross-entropy + (l2/2)·‖W‖², and its gradient (K, D + 1) with the bias last; faster than autograd's."""
    logs = torch.addmm(model.bias, model.weight, values.T).log_softmax(dim=0)  # (K, n)
    truth = logs.gather(0, labels[None])
    # A sum in float64: in float32 the line search would see rounding errors near the minimum.
    loss = float(-truth.double().mean()) + l2 / 2 * float(model.weight.double().square().sum())
    error = logs.exp_().scatter_(0, labels[None], truth.exp() - 1).div_(len(labels))
    return loss, torch.cat([error @ values + l2 * model.weight, error.sum(dim=1, keepdim=True)], dim=1)
