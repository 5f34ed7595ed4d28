"""Nearest neighbours: the classes of the most similar train images vote, by cosine similarity. Nothing is fitted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import ConfigError
from clustermim.evaluation.accuracy import Accuracy, EvaluationResult, accuracy_of
from clustermim.evaluation.features import Features, check_pair, measure_features

_CHUNK = 1 << 22  # similarities held at a time: 16 MB


def knn(
    encoder: Any, train: Any, test: Any, *, k: int = 20, temperature: float | None = 0.07, batch_size: int = 256
) -> EvaluationResult:
    """Accuracy on test images of a vote of their nearest train images, for both poolings.

    Args:
        encoder: an encoder, its folder, or a function from images (B, C, H, W) in [0, 1] to tokens (B, 1 + N, D).
        train: labelled images to look among.
        test: labelled images to classify.
        k: neighbours that vote.
        temperature: a vote weighs exp(cosine similarity / temperature); None: each weighs the same.
        batch_size: images encoded at a time.
    """
    found = measure_features(knn_features, encoder, train, test, batch_size, k=k, temperature=temperature)
    return EvaluationResult(f"{k} nearest neighbours", **found)


def knn_features(train: Features, test: Features, k: int = 20, temperature: float | None = 0.07) -> Accuracy:
    """The same of features."""
    train, test = check_pair(train, test)
    if not 1 <= k <= len(train.values):
        raise ConfigError(f"--k {k} neighbours cannot be had from {len(train.values)} train images")
    if temperature is not None and temperature <= 0:
        raise ConfigError(f"--temperature {temperature} is not above 0")
    correct = int((vote(train.values, train.labels, test.values, k, temperature) == test.labels).sum())
    counts = {"train_images": len(train.labels), "classes": len(set(train.labels.tolist()))}
    return accuracy_of(correct, len(test.labels), protocol="knn", k=k, temperature=temperature, **counts)


def vote(values: Tensor, labels: Tensor, queries: Tensor, k: int, temperature: float | None) -> Tensor:
    """The class (m,) that the neighbours of queries (m, D) among features (n, D) vote for; of equals the first."""
    values, queries = F.normalize(values, dim=1), F.normalize(queries, dim=1)
    classes, predicted = int(labels.max()) + 1, []
    for part in torch.split(queries, max(1, _CHUNK // len(values))):
        similarity, indices = top_k(part @ values.T, k)  # (b, k) each
        # less 1: the largest weight is then 1, and the proportions are the same
        weights = torch.ones_like(similarity) if temperature is None else ((similarity - 1) / temperature).exp()
        votes = weights.new_zeros((len(part), classes)).scatter_add_(1, labels[indices], weights)
        predicted.append(votes.argmax(dim=1))
    return torch.cat(predicted)


def top_k(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (b, n), and where: (b, k) each; of equals those that come first."""
    best = similarity.topk(min(k + 1, similarity.shape[1]), dim=1)
    values, indices = best.values[:, :k], best.indices[:, :k]
    # When the first that is out equals the last that is in, `topk` chose between them at will.
    tied = best.values[:, -1] == values[:, -1]
    if best.values.shape[1] > k and tied.any():
        ordered, order = similarity[tied].sort(dim=1, descending=True, stable=True)
        values[tied], indices[tied] = ordered[:, :k], order[:, :k]
    return values, indices
