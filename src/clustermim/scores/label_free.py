"""What tokens tell without labels: Σλ², kinship, kinship between an image and itself in another light, outlook."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from clustermim.data import Source, to_float
from clustermim.data.color_jitter import color_jitter
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.patches import grid_size
from clustermim.progress import log_info
from clustermim.scores import TokenCooccurrence
from clustermim.scores.patch_mi import patch_mi_beyond, without_places
from clustermim.scores.sampled import view_retrieval, with_interval
from clustermim.scores.spectral import count_into, pair_counts_between
from clustermim.tokenizers import Tokenizer, ids_of, tokenize

MOST_TOKENS = 10_000  # of which all pairs are counted: the tables take 50 bytes a pair and more
RELIT_IMAGES = 2048  # at most, of all ranks: each is tokenized twice more
NEGATIVES = 2  # images that each is compared with, for what pairs tell that belong to no image
BATCH = 256


def label_free(tokenizer: Tokenizer, source: Source) -> dict[str, float]:
    """The scores of a tokenizer that need no labels."""
    kin, halves = PatchMI(tokenizer, source), two_halves(source)
    for batch, ids in tokenize(tokenizer, source):
        kin.update(ids, halves[batch.indices])
    found = with_interval("view_retrieval", view_retrieval(tokenizer, source))
    return {**kin.compute(), "patch_mi_jittered": patch_mi_jittered(tokenizer, source), **found}


class PatchMI:
    """Counts what tokens of one image tell of each other: Σλ² and kinship, where the images allow it."""

    def __init__(self, tokenizer: Tokenizer, source: Source) -> None:
        self.places = empty_places(tokenizer, source)
        patches, vocab_size = self.places.shape
        if vocab_size > MOST_TOKENS:
            log_info(
                f"Σλ², kinship and relit are left out: the pairs of {vocab_size:,} tokens would take too much memory"
            )
        paired = patches > 1 and vocab_size <= MOST_TOKENS
        self.pairs = TokenCooccurrence(vocab_size) if paired else None

    def update(self, ids: Tensor, halves: Tensor) -> None:
        """Count a batch: ids (B, N), and to which half of the images each belongs (B,)."""
        if self.pairs is not None:
            self.pairs.update(ids, halves)
        count_places(self.places, ids)

    def compute(self) -> dict[str, float]:
        """What was counted on all ranks; NaN for images of one patch, a single image, and very many tokens."""
        places = all_reduce_sum(self.places)
        try:
            found = None if self.pairs is None else self.pairs.compute()
        except DataError:  # a single image
            found = None
        if found is None:
            return {"sum_sq": math.nan, "sum_sq_plug_in": math.nan, "patch_mi": math.nan}
        kin = without_places(found["information"], found["entropy"], places)
        return {"sum_sq": found["sum_sq"], "sum_sq_plug_in": found["plug_in"], "patch_mi": kin}


def patch_mi_jittered(tokenizer: Tokenizer, source: Source, limit: int = RELIT_IMAGES) -> float:
    """Kinship of patches of an image with other patches of the same image in another light, 0 … 1.

    Patches of one image share colours and brightness, which tell little of its class and much of each other. Here
    each copy has its own, so that what is left is what the image shows. What pairs from different images tell,
    because tokens have their places and because rare pairs look informative, is taken away. NaN for images of one
    patch, and for very many tokens.
    """
    if tokenizer.vocab_size > MOST_TOKENS:
        return math.nan
    patches = math.prod(grid_size(*source.shape[1:], tokenizer.patch_size))
    many = 2 * patches**2 * min(limit, len(source)) >= 2**31  # pairs, which may all be of one kind
    tables = (1 + NEGATIVES, tokenizer.vocab_size, tokenizer.vocab_size)
    pairs = torch.zeros(tables, dtype=torch.long if many else torch.int32)
    for first, second in jittered_tokens(tokenizer, source, limit):
        for distance, table in enumerate(pairs):  # 0: of the same image
            pair_counts_between(first, second.roll(distance, 0), table)
    return patch_mi_beyond(*all_reduce_sum(pairs))


def jittered_tokens(tokenizer: Tokenizer, source: Source, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids (B, N) of some images in two lights each, batch by batch; this rank has every so-maniest.

    Light and neighbours depend on the batch alone, so that several ranks count what one would.
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


def two_halves(source: Source) -> Tensor:
    """To which of two halves each image belongs, (images,) of 0 and 1: at random, for sources may be sorted."""
    return torch.randperm(len(source), generator=torch.Generator().manual_seed(0)) % 2


def empty_places(tokenizer: Tokenizer, source: Source) -> Tensor:
    """A table (N, vocab_size) for the tokens at each place of the grid."""
    rows, columns = grid_size(*source.shape[1:], tokenizer.patch_size)
    return torch.zeros(rows * columns, tokenizer.vocab_size, dtype=torch.long)


def count_places(places: Tensor, ids: Tensor) -> None:
    """Count ids (B, N) into a table of places."""
    patches, vocab_size = places.shape
    count_into(places, torch.arange(patches) * vocab_size + ids)
