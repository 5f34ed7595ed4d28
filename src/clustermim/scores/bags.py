"""What an image's tokens, counted without their places, say of its class and of the image itself.

Good tokens say what an image shows. Tokens that say which image this is, because its patches share a colour or a
texture, are predicted from any patch nearby, and an encoder learns little from them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import DataError
from clustermim.scores.base import Value, check_memory
from clustermim.scores.collect import Tokens, renumber
from clustermim.threads import undivided

PRIOR = 1000  # patches that every class is taken to have shown before, spread as those of all classes are
TIE = 1e-6  # similarities that differ by less are the same
PARTS = 8  # of the images: each is classified by what the others have shown
DENSE = 16_384  # tokens of a larger codebook are numbered among those that occur


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


@undivided()
def bag_accuracy(ids: Tensor, labels: Tensor, counts: Tensor, unused: int = 0) -> float:
    """The share of images (B, N) that a naive Bayes classifier gives their class, a mean over classes.

    counts: (C, l), how often each token was in other images of each class; `unused` tokens have no column. All classes
    are taken to be equally likely, and weigh the same however many images they have. A token that was never seen says
    nothing, and a class of which nothing was seen is never chosen.
    """
    totals = counts.sum(0, dtype=torch.float64)
    spread = (totals + 1).sum() + unused
    shown = counts + PRIOR * (totals + 1) / spread  # (C, l) float64
    likelihood = (shown / (shown.sum(1, keepdim=True) + PRIOR * unused / spread)).log_().float()
    scores = bags(ids, counts.shape[1]) @ likelihood.t()  # (B, C)
    scores[:, counts.sum(1) == 0] = -torch.inf
    right = torch.bincount(labels[scores.argmax(1) == labels], minlength=len(counts))
    images = torch.bincount(labels, minlength=len(counts))
    return float((right[images > 0] / images[images > 0]).mean())


@undivided()
def retrieval(first: Tensor, second: Tensor, frequencies: Tensor) -> float:
    """The share of images one part of which finds the other among those of all images, by tokens in common.

    first, second: ids (B, n) and (B, m) of two parts of each image. frequencies: (l,), how often each token occurs;
    rare ones weigh more. Where several are equally similar, one of them is drawn.

    >>> retrieval(torch.tensor([[0], [1]]), torch.tensor([[0], [1]]), torch.tensor([2, 2]))
    1.0
    """
    check_memory(20 * len(first) * len(frequencies), f"bags of {len(frequencies):,} tokens")
    rarity = ((frequencies.sum() + 1) / (frequencies + 1)).log()
    one, other = (F.normalize(bags(ids, len(frequencies)).sqrt() * rarity, dim=1) for ids in (first, second))
    similarity = one @ other.t()  # (B, B)
    own = similarity.diagonal()[:, None]
    better = (similarity > own + TIE).any(1)
    equal = (similarity > own - TIE).sum(1)
    return float(torch.where(better, torch.zeros(()), 1 / equal).mean())


def bag_accuracies(tokens: Tokens) -> list[float]:
    """`bag_accuracy` of each part of the sampled images, by the counts of the other parts."""
    parts, (ids, size) = split(tokens.sample[0]), numbered(tokens.sample[0], tokens.vocab_size)
    labels = torch.from_numpy(tokens.classes_of(tokens.sample[1].numpy()))
    check_memory(44 * tokens.classes * size, f"counts of {size:,} tokens in {tokens.classes:,} classes")
    counts = class_counts(ids, labels, size, tokens.classes)
    found = []
    for part in parts:
        others = counts - class_counts(ids[part], labels[part], size, tokens.classes)
        found.append(bag_accuracy(ids[part], labels[part], others, tokens.vocab_size - size))
    return found


def half_retrievals(tokens: Tokens) -> list[float]:
    """How often the left half of an image finds its right half, of each part of the images, labelled or not."""
    parts, (ids, size) = split(tokens.more), numbered(tokens.more, tokens.vocab_size)
    frequencies = torch.bincount(ids.flatten(), minlength=size)
    left, right = halves(ids, tokens.grid)
    return [retrieval(left[part], right[part], frequencies) for part in parts]


def view_retrieval(tokens: Tokens) -> Value:
    """How often one random view of an image finds another among those of its part of the images.

    An image that is cropped, flipped and in other colours still shows the same: what tokens say that stays is what the
    image shows. Compare tokenizers on equally many images of the same source.
    """
    parts = split(tokens.sample[0])
    (ids, first, second), size = numbered(torch.stack([tokens.sample[0], *tokens.views]), tokens.vocab_size)
    frequencies = torch.bincount(ids.flatten(), minlength=size)
    return Value.of([retrieval(first[part], second[part], frequencies) for part in parts])


def transferability(tokens: Tokens) -> Value:
    """Bag accuracy, 0 for chance or less and 1 for all, times 1 − half retrieval.

    Compare tokenizers on equally many images of the same source: with more of them classes are told better, and the
    other half of an image is harder to find.
    """
    accuracies, retrieved = tokens.cached(bag_accuracies), tokens.cached(half_retrievals)
    classes = len(np.unique(tokens.classes_of(tokens.sample[1].numpy())))
    if classes < 2:
        raise DataError("the images are of one class only")
    return Value.of(transfer(accuracies, retrieved, 1 / classes))


def transfer(accuracies: list[float], retrieved: list[float], chance: float) -> list[float]:
    """Transferability of each part, of its bag accuracy and half retrieval.

    >>> transfer([0.75, 0.4], [0.5, 0.2], 0.5)
    [0.25, 0.0]
    """
    above = [(accuracy - chance) / (1 - chance) for accuracy in accuracies]
    return [share * (1 - seen) if share > 0 else 0.0 for share, seen in zip(above, retrieved, strict=True)]


def numbered(ids: Tensor, vocab_size: int) -> tuple[Tensor, int]:
    """Ids and the size of their codebook; those of a large one are numbered among those that occur."""
    if vocab_size <= DENSE:
        return ids, vocab_size
    places, size = renumber(ids.numpy(), torch.bincount(ids.flatten(), minlength=vocab_size).numpy())
    return torch.from_numpy(places).long(), size


def split(ids: Tensor) -> list[slice]:
    """Equal parts of ids (B, N), of two images at least."""
    size = len(ids) // PARTS
    if ids.shape[1] == 1:
        raise DataError("images of one patch have no parts to compare")
    if size < 2:
        raise DataError(f"{len(ids)} images are too few: {2 * PARTS} at least")
    return [slice(start, start + size) for start in range(0, PARTS * size, size)]


def halves(ids: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Ids (B, N) of the left and of the right half of each image; of the upper and lower one of a single column."""
    found = ids.reshape(-1, *grid) if grid[1] > 1 else ids.reshape(-1, 1, grid[0])
    width = found.shape[2] // 2
    return found[:, :, :width].flatten(1), found[:, :, -width:].flatten(1)
