"""How good a target tokens promise to be, before any training: `promise` with a few labels, `outlook` without.

Tokens are to tell what an image shows. Those that rather tell this image from all others, because its patches have
a colour or a texture in common, are predicted from any patch nearby, and an encoder learns little by it.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clustermim.data import Source, to_float
from clustermim.data.augment import random_view
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.mean_ci import MeanCI
from clustermim.patches import grid_size
from clustermim.progress import track
from clustermim.scores.bags import bag_accuracy, class_counts, retrieval
from clustermim.tokenizers import Tokenizer, ids_of

IMAGES = 4096  # at most, drawn at random
BATCH = 256
PARTS = 8  # of the images: of each, its class is told by what the others have shown


class Transferability(NamedTuple):
    """What tokens tell, part by part of the images."""

    bag_accuracies: list[float]  # of how many images of a class the tokens, counted without their places, tell it
    retrieval: list[float]  # of how many images the left half finds the right half among those of its part
    chance: float  # of telling a class at random

    @property
    def parts(self) -> list[float]:
        """bag, 0 for chance or less and 1 for all, times what is not recognised."""
        spare = 1 - self.chance
        if not spare > 0:
            return [math.nan] * len(self.bag_accuracies)
        reported = [(bag_accuracies - self.chance) / spare for bag_accuracies in self.bag_accuracies]
        return [
            share * (1 - seen) if not share < 0 else 0.0 for share, seen in zip(reported, self.retrieval, strict=True)
        ]

    def describe(self) -> dict[str, float]:
        """Means, and the interval of the promise."""
        return {
            **with_interval("transferability", self.parts),
            "bag_accuracy": fmean(self.bag_accuracies),
            "half_retrieval": fmean(self.retrieval),
        }


def with_interval(name: str, parts: list[float]) -> dict[str, float]:
    """The mean of a score over parts of the images, and its interval."""
    found = MeanCI.of(parts)
    low, high = found.interval() or (math.nan, math.nan)
    return {name: found.mean, f"{name}_low": low, f"{name}_high": high}


def transferability(tokenizer: Tokenizer, source: Source, images: int = IMAGES) -> Transferability:
    """The promise of a tokenizer on some images of a labelled source; NaN of images of one patch.

    Compare tokenizers on equally many images of the same source: more of them tell the class better, and hide the
    other half of an image better.
    """
    if source.labels is None:
        raise DataError(
            f"{source.spec} has no labels, and a promise needs some: arrange the images in a folder a class"
        )
    (ids,), drawn = sample(tokenizer, source, images)
    labels = torch.from_numpy(source.labels)[drawn]
    classes, vocab_size = len(source.class_names), tokenizer.vocab_size
    chance = 1 / int((torch.bincount(labels) > 0).sum()) if len(labels) else math.nan
    if not (parts := split(ids)):
        return Transferability([math.nan] * PARTS, [math.nan] * PARTS, chance)
    counts = class_counts(ids, labels, vocab_size, classes)
    left, right = halves(ids, grid_size(*source.shape[1:], tokenizer.patch_size))
    bag_accuracies, seen = [], []
    for part in parts:
        others = counts - class_counts(ids[part], labels[part], vocab_size, classes)
        bag_accuracies.append(bag_accuracy(ids[part], labels[part], others))
        seen.append(retrieval(left[part], right[part], counts.sum(0)))
    return Transferability(bag_accuracies, seen, chance)


def view_retrieval(tokenizer: Tokenizer, source: Source, images: int = IMAGES) -> list[float]:
    """The outlook of a tokenizer on some images of a source without labels, part by part; NaN of images of one patch.

    An image that is cropped, flipped and in another light still shows the same. The outlook is the share of images
    one such view of which finds another, by tokens, among those of its part: what tokens tell that stays is what the
    image shows. Compare tokenizers on equally many images of the same source.
    """
    (ids, first, second), _ = sample(tokenizer, source, images, views=2)
    frequencies = torch.bincount(ids.flatten(), minlength=tokenizer.vocab_size)
    return [retrieval(first[part], second[part], frequencies) for part in split(ids)] or [math.nan] * PARTS


def sample(tokenizer: Tokenizer, source: Source, images: int, views: int = 0) -> tuple[Tensor, Tensor]:
    """Ids (1 + views, B, N) of some images drawn at random and of random views of them, and which images, (B,).

    They are the same on every rank, and on any number of ranks: views depend on the batch alone, of which each rank
    takes every so-maniest. Images that cannot be read are left out.
    """
    drawn = torch.from_numpy(np.random.default_rng(0).permutation(len(source))[:images])
    places = torch.full((len(source),), -1)
    places[drawn] = torch.arange(len(drawn))
    rows, columns = grid_size(*source.shape[1:], tokenizer.patch_size)
    ids = torch.zeros(1 + views, len(drawn), rows * columns, dtype=torch.long)
    read = torch.zeros(len(drawn), dtype=torch.long)
    batches = source.batches(BATCH, among=(places >= 0).numpy())
    for number, batch in enumerate(track(batches, "tokenizing", total=-(-len(drawn) // BATCH))):
        if number % world_size() != rank():
            continue
        generator = torch.Generator().manual_seed(int(batch.indices[0]))
        shown = [to_float(batch.images), *(random_view(batch.images, generator) for _ in range(views))]
        where = places[batch.indices]
        ids[:, where] = torch.stack([ids_of(tokenizer, images, batch.labels) for images in shown])
        read[where] = 1
    kept = all_reduce_sum(read) > 0
    return all_reduce_sum(ids)[:, kept], drawn[kept]


def split(ids: Tensor) -> list[slice]:
    """Equal parts of ids (B, N), of two images at least; none where there are too few, or one patch only."""
    size = len(ids) // PARTS
    if size < 2 or ids.shape[1] == 1:
        return []
    return [slice(start, start + size) for start in range(0, PARTS * size, size)]


def halves(ids: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Ids (B, N) of the left and of the right half of each image; of the upper and lower one of a single column."""
    found = ids.reshape(-1, *grid) if grid[1] > 1 else ids.reshape(-1, 1, grid[0])
    width = found.shape[2] // 2
    return found[:, :, :width].flatten(1), found[:, :, -width:].flatten(1)
