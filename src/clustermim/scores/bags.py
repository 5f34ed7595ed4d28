"""What the bag of an image's tokens, counted without their places, tells: of its class, and of the very image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PRIOR = 1000  # patches that every class is taken to have shown before, spread as those of all classes are
TIE = 1e-6  # likenesses that differ by less are the same


def bags(ids: Tensor, vocab_size: int) -> Tensor:
    """How often each token is in each image, (B, l), of ids (B, N).

    >>> bags(torch.tensor([[0, 2, 2]]), 3)
    tensor([[1., 0., 2.]])
    """
    return torch.zeros(len(ids), vocab_size).scatter_add_(1, ids, torch.ones(ids.shape))


def class_counts(ids: Tensor, labels: Tensor, vocab_size: int, classes: int) -> Tensor:
    """How often each token is in images of each class, (C, l), of ids (B, N) and labels (B,)."""
    cells = labels[:, None] * vocab_size + ids
    return torch.bincount(cells.flatten(), minlength=classes * vocab_size).reshape(classes, vocab_size)


def bag_accuracy(ids: Tensor, labels: Tensor, counts: Tensor) -> float:
    """The share of images (B, N) whose class a naive Bayes classifier tells from their tokens, a mean over classes.

    counts: (C, l), how often each token was in other images of each class. All classes are taken to be equally likely,
    and weigh the same however many images they have. A token that was never seen tells nothing, and a class of which
    nothing was seen is never told.
    """
    totals = counts.sum(0, dtype=torch.float64)
    prior = PRIOR * (totals + 1) / (totals + 1).sum()
    shown = counts.double() + prior  # (C, l)
    likelihood = (shown / shown.sum(1, keepdim=True)).log().float()
    scores = bags(ids, counts.shape[1]) @ likelihood.t()  # (B, C)
    scores[:, counts.sum(1) == 0] = -torch.inf
    reported = torch.bincount(labels[scores.argmax(1) == labels], minlength=len(counts))
    images = torch.bincount(labels, minlength=len(counts))
    return float((reported[images > 0] / images[images > 0]).mean())


def retrieval(first: Tensor, second: Tensor, frequencies: Tensor) -> float:
    """The share of images one part of which finds the other among those of all images, by tokens that are alike.

    first, second: ids (B, n) and (B, m) of two parts of each image. frequencies: (l,), how often each token occurs;
    rare ones weigh more. Where several are equally alike, one of them is drawn.

    >>> recognised(torch.tensor([[0], [1]]), torch.tensor([[0], [1]]), torch.tensor([2, 2]))
    1.0
    """
    rarity = ((frequencies.sum() + 1) / (frequencies + 1)).log()
    one, other = (F.normalize(bags(ids, len(frequencies)).sqrt() * rarity, dim=1) for ids in (first, second))
    likeness = one @ other.t()  # (B, B)
    own = likeness.diagonal()[:, None]
    better = (likeness > own + TIE).any(1)
    equal = (likeness > own - TIE).sum(1)
    return float(torch.where(better, torch.zeros(()), 1 / equal).mean())
