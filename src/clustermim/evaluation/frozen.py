"""Frozen features measured in two ways, nearest neighbours and a linear probe solved to its optimum by L-BFGS.

The classes of the most similar train images vote, by cosine similarity; nothing is fitted. The probe is

    minimise over W (K, D) and b (K,):   mean cross-entropy(W x + b, label) + (l2 / 2)·‖W‖²

x are features standardised as train is. l2 is chosen on a held-out tenth of train; then all of train is fitted.
To be fast, features are turned into their principal axes, which changes neither the minimum nor ‖W‖. There the
curvature of the loss is nearly diagonal, about variance / K + l2, and is scaled away. Features stay on their device;
L-BFGS reads the loss of every step from it, to choose the length of the next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import ConfigError, DataError
from clustermim.evaluation.features import Features, measure_features
from clustermim.evaluation.labels import Accuracy, EvaluationResult, accuracy_of
from clustermim.progress import log_info, track
from clustermim.training import Device

_CHUNK = 1 << 22  # similarities held at a time: 16 MB
_LOGITS = 1 << 20  # of the probe, likewise: 4 MB, which a cache holds
_ROWS = 1 << 13  # features in float64 at a time
_NEGLIGIBLE = 1e-6  # share of the largest variance
# Strongest first: each solution starts the next, and of equally good ones the strongest is taken.
GRID = tuple(10.0**-power for power in range(9))  # 1 to 1e-8
_PARTS = 10  # one of so many is held out
_PATIENCE = 2  # values of l2 in a row that are worse than the best before weaker ones, the slowest, are left out


def knn(
    encoder: Any,
    train: Any,
    test: Any,
    *,
    k: int = 20,
    temperature: float | None = 0.07,
    batch_size: int = 256,
    device: Device | None = None,
) -> EvaluationResult:
    """Accuracy on test images of a vote of their nearest train images, for both poolings, plain and whitened.

    Cosine similarity of plain features also measures how isotropic they are: where a few directions have most of the
    variance, they alone decide who is near. Whitening takes that away: every direction counts alike.

    >>> import clustermim as cm
    >>> encoder = cm.pretrain("digits/train", patch_size=4, epochs=1)
    >>> found = cm.knn(encoder, "digits/train", "digits/test")
    >>> found.avg.accuracy > 0.5, found.avg.whitened.accuracy > 0.5
    (True, True)

    Args:
        encoder: an encoder, its folder, or a function from images (B, C, H, W) in [0, 1] to tokens (B, 1 + N, D).
        train: labelled images to look among.
        test: labelled images to classify.
        k: neighbours that vote.
        temperature: a vote weighs exp(cosine similarity / temperature); None: each weighs the same.
        batch_size: images encoded at a time.
        device: where to compute; by default the fastest that is there.
    """
    options = {"k": k, "temperature": temperature}
    found = measure_features(knn_features, encoder, train, test, batch_size, device, **options)
    return EvaluationResult(f"{k} nearest neighbours", **found)


def knn_features(train: Features, test: Features, k: int = 20, temperature: float | None = 0.07) -> Accuracy:
    """The same of features."""
    if not 1 <= k <= len(train.values):
        raise ConfigError(f"--k {k} neighbours cannot be had from {len(train.values)} train images")
    if temperature is not None and temperature <= 0:
        raise ConfigError(f"--temperature {temperature} is not above 0")
    present = torch.unique(train.labels).tolist()

    def correct(values: Tensor, queries: Tensor) -> int:
        votes = vote(values, train.labels, queries, k, temperature, present[-1] + 1)
        return int((votes == test.labels).sum())

    plain, whitened = correct(train.values, test.values), correct(*whiten(train.values, test.values))
    counts = {"train_images": len(train.labels), "classes": len(present)}
    found = accuracy_of(plain, len(test.labels), protocol="knn", k=k, temperature=temperature, **counts)
    return replace(found, whitened=accuracy_of(whitened, len(test.labels)))


def whiten(values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Features (n, D) and queries (m, D) along the principal axes of the features, at unit variance along each.

    An axis with less than a millionth of the largest variance holds rounding errors, and becomes zero.
    """
    mean = values.mean(dim=0, dtype=torch.float64)
    blocks = (part.double() - mean for part in torch.split(values, _ROWS))
    covariance = sum((part.T @ part for part in blocks), start=mean.new_zeros(())) / len(values)
    variances, axes = torch.linalg.eigh(covariance)
    # where features are constant, all of the variance is rounding errors of their mean
    negligible = _NEGLIGIBLE * variances[-1].clamp(min=_NEGLIGIBLE * mean.square().sum())
    scale = torch.where(variances > negligible, variances.rsqrt(), 0)
    mean, matrix = mean.to(values), (axes * scale).to(values)
    return (values - mean) @ matrix, (queries - mean) @ matrix


def vote(values: Tensor, labels: Tensor, queries: Tensor, k: int, temperature: float | None, classes: int) -> Tensor:
    """The class (m,) that the neighbours of queries (m, D) among features (n, D) vote for; of equals the first.

    Beside copies of both at unit length it takes 16 MB for similarities, and some more to find the largest.
    """
    values, queries = F.normalize(values, dim=1), F.normalize(queries, dim=1)
    predicted = []
    parts = torch.split(queries, rows_at_once(values))
    for part in track(parts, "neighbours", total=len(parts)):
        predicted.append(class_votes(values, labels, part, k, temperature, classes).argmax(dim=1))
    return torch.cat(predicted)


def rows_at_once(values: Tensor) -> int:
    """How many queries are compared with features (n, D) at a time."""
    return max(1, _CHUNK // len(values))


def class_votes(
    values: Tensor, labels: Tensor, queries: Tensor, k: int, temperature: float | None, classes: int
) -> Tensor:
    """The votes (m, K) for each class, as `vote` counts them, of features and queries of unit length."""
    similarity, indices = top_k(queries @ values.T, k)  # (m, k) each
    # less 1: the largest weight is then 1, and the proportions are the same
    weights = torch.ones_like(similarity) if temperature is None else ((similarity - 1) / temperature).exp()
    return weights.new_zeros((len(queries), classes)).scatter_add_(1, labels[indices], weights)


def top_k(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (b, n), and where: (b, k) each; of equals those that come first."""
    best, n = similarity.topk(min(k + 1, similarity.shape[1]), dim=1), similarity.shape[1]
    values, indices = best.values[:, :k], best.indices[:, :k]
    last = values[:, -1:]
    # When the first that is out equals the last that is in, `topk` chose between them at will. Whether that happened
    # is only asked on the CPU, where reading an answer costs nothing.
    if n == k or (similarity.device.type == "cpu" and not bool((best.values[:, -1:] == last).any())):
        return values, indices
    earlier = torch.arange(n, 0, -1, dtype=torch.int32, device=similarity.device)
    equals = torch.where(similarity == last, earlier, 0).topk(k, dim=1).indices  # the first come first
    above = values > last  # (b, k), true for the first c of a row
    place = torch.arange(k, device=similarity.device) - above.sum(dim=1, keepdim=True)
    return values, torch.where(above, indices, equals.gather(1, place.clamp(min=0)))


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
    if (count := len(train.labels)) < _PARTS:
        raise DataError(f"the train set has {count} images, too few to hold out a tenth: at least {_PARTS} are needed")
    present, labels = torch.unique(train.labels, return_inverse=True)  # a class without images would have no optimum
    log_info(f"linear probe of {count:,} × {train.values.shape[1]} features, {len(present)} classes")
    axes = principal_axes(train.values)
    values = axes.turn(train.values)
    tried = choose_l2(values, labels, len(present), seed)
    best = max(tried, key=lambda l2: tried[l2][0])  # the first, hence strongest, of equals
    model = fit_logistic(values, labels, len(present), best, start=tried[best][1])
    correct = int((present[predict(model, axes.turn(test.values))] == test.labels).sum())
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


def choose_l2(
    values: Tensor, labels: Tensor, classes: int, seed: int, held: Tensor | None = None
) -> dict[float, tuple[float, Tensor]]:
    """For each l2 tried, accuracy on a held-out tenth of train and the classifier (K, D + 1) of the rest.

    `held` (n,) says which rows are held out, where it is not a tenth of each class.
    """
    held = held_out(labels, seed) if held is None else held
    kept, others = (values[~held], labels[~held]), (values[held], labels[held])
    tried: dict[float, tuple[float, Tensor]] = {}
    start, last, best, worse = None, None, 0.0, 0
    for l2 in track(GRID, "penalties of the linear probe", total=len(GRID)):
        model = fit_logistic(*kept, classes, l2, start)
        start, last = model if last is None else 2 * model - last, model  # it goes on about as it went
        accuracy = int((predict(model, others[0]) == others[1]).sum()) / len(others[1])
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


def fit_logistic(values: Tensor, labels: Tensor, classes: int, l2: float, start: Tensor | None = None) -> Tensor:
    """W and b side by side (K, D + 1) at the minimum for features (n, D) and labels (n,) < K, sought from `start`."""
    # The feature of the bias is 1, and it is not penalised.
    curvature = torch.cat([values.square().mean(dim=0) / classes + l2, values.new_full((1,), 1 / classes)])
    scale = curvature.rsqrt()  # (D + 1,)
    scaled = (values.new_zeros((classes, len(scale))) if start is None else start) / scale  # (K, D + 1)
    # The loss decides when it ends: where classes separate, gradients vanish long before the minimum.
    limits: dict[str, Any] = {"max_iter": 2000, "max_eval": 4000, "tolerance_grad": 1e-7, "tolerance_change": 1e-8}
    optimizer = torch.optim.LBFGS([scaled], history_size=20, line_search_fn="strong_wolfe", **limits)

    def closure() -> float:
        loss, gradient = objective(scaled * scale, values, labels, l2)
        scaled.grad = gradient * scale
        return float(loss)

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return scaled * scale


def objective(model: Tensor, values: Tensor, labels: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """What is minimised, and its gradient (K, D + 1); written out, it is several times faster than autograd's."""
    weight, bias = model[:, :-1], model[:, -1:]
    # A sum in float64: in float32 the line search would see rounding errors near the minimum.
    loss = l2 / 2 * weight.double().square().sum()
    gradient = torch.cat([l2 * weight, torch.zeros_like(bias)], dim=1)
    rows = max(1, _LOGITS // len(model))
    for x, label in zip(torch.split(values, rows), torch.split(labels[None], rows, dim=1), strict=True):
        logs = torch.addmm(bias, weight, x.T).log_softmax(dim=0)  # (K, rows)
        truth = logs.gather(0, label)
        loss = loss - truth.double().sum() / len(values)
        error = logs.exp_().scatter_(0, label, truth.exp() - 1).div_(len(values))
        gradient += torch.cat([error @ x, error.sum(dim=1, keepdim=True)], dim=1)
    return loss, gradient


def predict(model: Tensor, values: Tensor) -> Tensor:
    """The most likely class (n,) of features (n, D); of equals the first."""
    return torch.addmm(model[:, -1:], model[:, :-1], values.T).argmax(dim=0)
