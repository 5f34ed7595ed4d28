"""What tokens of one image say of each other, without any label: mutual information of patches.

Patches of one image share its class, so tokens that know the class know of each other. So do tokens that only say where
in the image they are, which is trivial to predict: that part is taken away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.count_tables import Floats, Input, as_counts
from clustermim.data import Source, to_float
from clustermim.data.augment import color_jitter
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.scores.base import check_memory
from clustermim.scores.codebook import entropy
from clustermim.scores.collect import BATCH, PAIR, Tokens, renumber
from clustermim.scores.spectral import count_into, half_corrected, pair_counts, pair_counts_between
from clustermim.tokenizers import Tokenizer, ids_of

JITTERED = 2048  # images at most, of all ranks: each is tokenized twice more
MOST_TOKENS = 8192  # of a larger codebook only tokens that occur are paired
NEGATIVES = 2  # images that each is compared with, for what pairs say that belong to no image


def patch_mi(first: Input, second: Input, positions: Input) -> float:
    """(I(S; S') − I of positions alone) / H(S), of the tokens S and S' of two patches of an image: 0 … 1.

    first, second: (l, l) counts of pairs of patches of one image, from two halves of the images. positions: (N, l)
    counts of tokens at each position. Tokens that are independent given their positions have 0, tokens that are the
    class have 1. 2·I(all) − mean of I(halves) removes the bias of rare pairs.

    >>> patch_mi([[4, 0], [0, 4]], [[4, 0], [0, 4]], [[2, 2], [2, 2]])
    1.0
    >>> patch_mi([[2, 2], [2, 2]], [[2, 2], [2, 2]], [[2, 2], [2, 2]])
    0.0
    """
    halves = [as_counts(half, "the co-occurrence table", 2) for half in (first, second)]
    pairs = halves[0] + halves[1]
    parts = [mutual_information(half) for half in halves]
    information, diversity = 2 * mutual_information(pairs) - sum(parts) / 2, entropy(pairs.sum(axis=0))
    places = mutual_information(by_positions(as_counts(positions, "the table of positions", 2)))
    return (information - places) / diversity if diversity > 0 else 0.0  # one token says nothing


def patch_mi_beyond(pairs: Input, *negatives: Input) -> float:
    """(I of pairs − mean I of negatives) / H, of the tokens of two patches: 0 … 1, and NaN where there is no pair.

    pairs: (l, l) counts of pairs of patches that belong to one image. negatives: the same, of equally many pairs from
    different images at the same positions: what these say is not of the image.

    >>> patch_mi_beyond([[4, 0], [0, 4]], [[2, 2], [2, 2]])
    1.0
    """
    if not np.asarray(pairs).any():
        return math.nan
    table = as_counts(pairs, "the table of pairs", 2)
    others = [mutual_information(as_counts(one, "the table of negatives", 2)) for one in negatives]
    diversity = entropy(table.sum(axis=0))
    return (mutual_information(table) - sum(others) / len(others)) / diversity if diversity > 0 else 0.0


def mutual_information(table: Floats) -> float:
    """I(row; column) in nats of the distribution proportional to a table of counts."""
    return entropy(table.sum(axis=0)) + entropy(table.sum(axis=1)) - entropy(table.ravel())


def by_positions(positions: Floats) -> Floats:
    """Pairs of tokens at two different positions, (l, l), were tokens independent given them: Σ_{i≠j} P_i P_jᵀ.

    positions: (N, l) counts of tokens at each position.
    """
    shares = positions / positions.sum(axis=1, keepdims=True)  # (N, l)
    total = shares.sum(axis=0)
    table: Floats = np.outer(total, total) - shares.T @ shares
    return np.clip(table, 0, None)


class PairScores(NamedTuple):
    """What the pairs of patches of an image give."""

    sum_sq: float  # Σλ² corrected by halves of the images
    sum_sq_plug_in: float  # Σλ² of all images, biased upwards
    patch_mi: float


def pair_scores(tokens: Tokens) -> PairScores:
    """Count all pairs of patches of each image, in two halves of the images."""
    (ids,), size = _paired(tokens, [tokens.ids[0]], tokens.frequencies)
    second = tokens.groups[tokens.ids[1]] % 2
    if not all_reduce_sum(torch.from_numpy(np.bincount(second, minlength=2))).all():
        raise DataError("a single image, or images of one group only, cannot be halved")
    pairs = torch.zeros(2, size, size, dtype=torch.int64)
    for half in range(2):
        pair_counts(torch.from_numpy(ids[second == half]).long(), size, into=pairs[half])
    places = torch.zeros(tokens.patches, size, dtype=torch.long)
    count_into(places, torch.arange(tokens.patches) * size + torch.from_numpy(ids))
    pairs, places = all_reduce_sum(pairs), all_reduce_sum(places)
    return PairScores(*half_corrected(pairs[0], pairs[1]), patch_mi(pairs[0], pairs[1], places))


def patch_mi_jittered(tokens: Tokens, limit: int = JITTERED) -> float:
    """Patch mutual information between an image and other patches of itself in other colours, 0 … 1.

    Patches of one image share colours and brightness, which say little of its class and much of each other. Here each
    copy has its own, so that what is left is what the image shows. What pairs from different images say, because
    tokens have their positions and because rare pairs look informative, is taken away.
    """
    copies = list(jittered_tokens(tokens.tokenizer, tokens.source, limit))
    used = torch.zeros(tokens.vocab_size, dtype=torch.long)
    for first, second in copies:
        used += torch.bincount(torch.cat([first, second]).flatten(), minlength=len(used))
    every, size = _paired(tokens, [ids.numpy() for pair in copies for ids in pair], all_reduce_sum(used).numpy())
    images = min(limit, len(tokens.source))
    many = 2 * tokens.patches**2 * images >= 2**31  # pairs, which may all be of one kind
    pairs = torch.zeros((1 + NEGATIVES, size, size), dtype=torch.long if many else torch.int32)
    for one, other in zip(every[::2], every[1::2], strict=True):
        first, second = torch.from_numpy(one).long(), torch.from_numpy(other).long()
        for distance, table in enumerate(pairs):  # 0: of the same image
            pair_counts_between(first, second.roll(distance, 0), table)
    found = patch_mi_beyond(*all_reduce_sum(pairs))
    if math.isnan(found):
        raise DataError(f"{images} images are too few to compare: {NEGATIVES + 1} at least")
    return found


def _paired(tokens: Tokens, ids: list[NDArray[Any]], counts: NDArray[Any]) -> tuple[list[NDArray[Any]], int]:
    """Ids and the size of the codebook, all pairs of which are counted; of a large one only tokens that occur."""
    if tokens.patches < 2:
        raise DataError("images of one patch have no pairs of patches")
    size = tokens.vocab_size
    if size > MOST_TOKENS and counts.any():
        ids, size = renumber(ids, counts)
    check_memory(PAIR * size**2, f"pairs of {size:,} tokens")
    return ids, size


def jittered_tokens(tokenizer: Tokenizer, source: Source, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids (B, N) of some images in two colourings each, batch by batch; this rank has every so-maniest.

    Colours and neighbours depend on the batch alone, so that several ranks count what one would.
    """
    left = min(limit, len(source))
    for number, batch in enumerate(source.batches(BATCH, seed=0)):
        some = batch.first(left)
        left -= len(some.images)
        if number % world_size() == rank() and len(some.images) > NEGATIVES:  # others to compare with
            generator = torch.Generator().manual_seed(number)
            images = to_float(some.images)
            first, second = (ids_of(tokenizer, color_jitter(images, generator), some.labels) for _ in range(2))
            yield first, second
        if left <= 0:
            return
