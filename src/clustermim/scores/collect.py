"""The tokens of a source's images, each image tokenized once, and the tables that scores read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.count_tables import Floats, Ints
from clustermim.data import Batch, Source, to_float
from clustermim.data.augment import random_view
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError, DataError
from clustermim.patches import grid_size
from clustermim.progress import track
from clustermim.scores.base import MEMORY, check_memory
from clustermim.scores.tcas import TCASVariant
from clustermim.threads import undivided
from clustermim.tokenizers import Tokenizer, ids_of
from clustermim.tokenizers.usage import remember_ids

T = TypeVar("T")

SAMPLE = 4096  # images at most, drawn at random, for scores that compare images
MANY_VIEWS, VIEWED = 8, 512  # random views of each of so many sampled images, for scores of several views
BATCH = 256
GROUPS = 20  # of images, for intervals: five to each fold; Student's t makes them 7 % wider than normal ones
GROUPED = 2**22  # cells of the tables of all groups, at most, that are kept
TABLES = 6  # tokens × classes tables in memory at a time, float64
PAIR = 50  # bytes for each pair of tokens, where all pairs are counted
AXIS = 40  # bytes for each image and principal axis


class Tokens:
    """What all scores of a tokenizer on a source are computed from; each part is made when a score first asks for it.

    Attributes:
        tokenizer, source, variant, seed, unlabelled: as given to `score`.
        vocab_size, grid, patches: size of the codebook, (rows, columns) of patches, and how many an image has.
        labels: (images,) classes numbered among those that occur, or None; `classes` is how many.
        groups: (images,) the group of each image, for the jackknife and for halves; dealt without regard to its class.
        shuffles: (permutations, images) for permuted labels.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: Source,
        variant: TCASVariant,
        permutations: int = 10,
        seed: int = 0,
        images: int = SAMPLE,
        unlabelled: Source | None = None,
    ) -> None:
        if tokenizer.needs_labels and source.labels is None:
            raise DataError(f"{source.spec} has no labels, and a {tokenizer.kind} tokenizer needs them")
        if permutations < 0:
            raise ConfigError(f"--permutations {permutations} is too small: 0 at least")
        if unlabelled is not None and unlabelled.shape != source.shape:
            raise DataError(f"images of {unlabelled.spec} have shape {unlabelled.shape}, not {source.shape}")
        self.tokenizer, self.source, self.variant, self.images = tokenizer, source, variant, images
        self.unlabelled = unlabelled
        self._known: dict[Callable[[Tokens], Any], Any] = {}
        self.vocab_size, self.grid = tokenizer.vocab_size, grid_size(*source.shape[1:], tokenizer.patch_size)
        self.patches = self.grid[0] * self.grid[1]
        generator, count = np.random.default_rng(seed), len(source)
        self.groups: Ints = generator.permutation(count) % GROUPS
        shuffles = [generator.permutation(count) for _ in range(permutations)]
        self.shuffles: Ints = np.array(shuffles, dtype=np.int64).reshape(permutations, count)
        self.labels: Ints | None = None
        self.classes = 0
        if source.labels is not None:
            present, self.labels = np.unique(source.labels, return_inverse=True)
            self.classes = len(present)

    @cached_property
    def sample(self) -> tuple[Tensor, Tensor]:
        """Ids (B, N) of images drawn at random, the same on every rank, and which they are, (B,)."""
        (ids,), where = sample(self.tokenizer, self.source, self.images)
        return ids, where

    @cached_property
    def more(self) -> Tensor:
        """Ids (B, N) of the sampled images, or of those without labels where there are some."""
        if self.unlabelled is None or self.tokenizer.needs_labels:
            return self.sample[0]
        return sample(self.tokenizer, self.unlabelled, self.images)[0][0]

    @cached_property
    def views(self) -> Tensor:
        """Ids (2, B, N) of two random views of each sampled image."""
        return sample(self.tokenizer, self.source, self.images, views=2)[0]

    @cached_property
    def many_views(self) -> Tensor:
        """Ids (q, n, N) of several random views of each of the first sampled images."""
        return sample(self.tokenizer, self.source, min(self.images, VIEWED), views=MANY_VIEWS)[0]

    def classes_of(self, where: Ints) -> Ints:
        """The classes of these images, (n,)."""
        if self.labels is None:
            raise DataError(f"{self.source.spec} has no labels")
        return self.labels[where]

    @cached_property
    def ids(self) -> tuple[NDArray[np.int32], Ints]:
        """Ids (n, N) of this rank's share of all images, and which they are, (n,); the sample's are known."""
        check_memory(4 * len(self.source) * self.patches / world_size(), f"tokens of {len(self.source):,} images")
        known, where = self.sample
        found = [(known[rank() :: world_size()].int(), where[rank() :: world_size()])]
        rest = np.ones(len(self.source), dtype=bool)
        rest[drawn(self.source, self.images)] = False
        batches = self.source.batches(BATCH, rank=rank(), world_size=world_size(), among=rest)
        with remember_ids(self.tokenizer, self.source) as remembered:
            for batch in track(batches, "tokenizing", total=-(-int(rest.sum()) // (BATCH * world_size()))):
                compute = partial(ids_of, self.tokenizer, to_float(batch.images), batch.labels)
                found.append((remembered(batch.indices, compute).int(), batch.indices))
        ids, where = (torch.cat(parts) for parts in zip(*found, strict=True))
        return ids.numpy(), where.numpy()

    @cached_property
    def frequencies(self) -> Floats:
        """Patches of each token, (l,)."""
        found = np.bincount(self.ids[0].ravel(), minlength=self.vocab_size)
        total: Floats = all_reduce_sum(torch.from_numpy(found)).numpy().astype(np.float64)
        if not total.any():
            raise DataError(f"no image of {self.source.spec} can be read")
        return total

    @cached_property
    def rows(self) -> tuple[NDArray[np.int32], int]:
        """Ids (n, N) as rows of `table`, and how many rows it has: tokens that never occur have none if dropped."""
        ids, size = self.ids[0], self.vocab_size
        if self.variant.empty == "drop":
            ids, size = renumber(ids, self.frequencies)
        check_memory(8 * TABLES * size * self.classes, f"tables of {size:,} tokens and {self.classes:,} classes")
        return ids, size

    def table(self, groups: Sequence[int] | None = None, permutation: int | None = None) -> Floats:
        """Tokens × classes over all ranks, of some groups of images or of all, the labels permuted between images."""
        if permutation is None and GROUPS * self.rows[1] * self.classes <= GROUPED:
            some = slice(None) if groups is None else list(groups)
            return self._group_tables[:, some].sum(1, dtype=np.float64)  # type: ignore[no-any-return]
        (ids, size), where = self.rows, self.ids[1]
        labels = self.classes_of(where if permutation is None else self.shuffles[permutation][where])
        if groups is not None:
            kept = np.isin(self.groups[where], groups)
            ids, labels = ids[kept], labels[kept]
        return count_pairs(ids, labels, size, self.classes).astype(np.float64)

    @cached_property
    def _group_tables(self) -> Ints:
        """Tokens × groups of images × classes, over all ranks."""
        (ids, size), where = self.rows, self.ids[1]
        columns = self.groups[where] * self.classes + self.classes_of(where)
        return count_pairs(ids, columns, size, GROUPS * self.classes).reshape(size, GROUPS, self.classes)

    def memory(self, rivals: bool) -> float:
        """Bytes that all scores together take at most, apart from the tokenizer."""
        patches = len(self.source) * self.patches
        tokens = min(self.vocab_size, patches)
        images = min(len(self.source), self.images)
        axes = AXIS * images * min(images, tokens) if rivals else 0
        tables = (PAIR * tokens**2, 8 * TABLES * tokens * self.classes, axes)
        return 16 * patches / world_size() + max(size if size <= MEMORY else 0 for size in tables)

    @cached_property
    def filled(self) -> list[int]:
        """The groups that hold images."""
        members = np.bincount(self.groups[self.ids[1]], minlength=GROUPS)
        return all_reduce_sum(torch.from_numpy(members)).nonzero()[:, 0].tolist()

    def cached(self, compute: Callable[[Tokens], T]) -> T:
        """compute(self), which several scores need and one pays for."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        return self._known[compute]  # type: ignore[no-any-return]


def count_pairs(ids: NDArray[np.int32], columns: Ints, size: int, width: int) -> Ints:
    """How often ids (n, N) are in images of columns (n,), (size, width), over all ranks."""
    cells = ids * np.int64(width) + columns[:, None]
    found = np.bincount(cells.ravel(), minlength=size * width).reshape(size, width)
    return all_reduce_sum(torch.from_numpy(found)).numpy()


def renumber(ids: NDArray[Any], counts: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Ids numbered among those of `counts` (l,) that occur, and how many these are.

    >>> renumber(np.array([0, 4]), np.array([3, 0, 1, 0, 1]))
    (array([0, 2], dtype=int32), 3)
    """
    places = np.cumsum(counts > 0, dtype=np.int32) - 1
    return places[ids], int(places[-1]) + 1


def drawn(source: Source, images: int) -> Ints:
    """Positions of the sampled images, at random."""
    return np.random.default_rng(0).permutation(len(source))[:images]


def sample(tokenizer: Tokenizer, source: Source, images: int, views: int = 0) -> tuple[Tensor, Tensor]:
    """Ids (1, B, N) of some images drawn at random, or (views, B, N) of random views of them, and which images, (B,).

    They are the same on every rank, and on any number of ranks: views depend on the batch alone, of which each rank
    takes every so-maniest. Images that cannot be read are left out.
    """
    chosen = torch.from_numpy(drawn(source, images))
    places = torch.full((len(source),), -1)
    places[chosen] = torch.arange(len(chosen))
    rows, columns = grid_size(*source.shape[1:], tokenizer.patch_size)
    ids = torch.zeros(max(1, views), len(chosen), rows * columns, dtype=torch.long)
    read = torch.zeros(len(chosen), dtype=torch.long)
    batches = source.batches(BATCH, among=(places >= 0).numpy())
    what = [f"{views} views, {images} images, {BATCH} at once"] if views else []
    with remember_ids(tokenizer, source, *what) as remembered:
        for number, batch in enumerate(track(batches, "tokenizing", total=-(-len(chosen) // BATCH))):
            if number % world_size() == rank():
                where = places[batch.indices]
                found = remembered(batch.indices, partial(_ids_of_views, tokenizer, batch, views))  # (B, views, N)
                ids[:, where] = found.view(len(where), max(1, views), -1).movedim(0, 1)
                read[where] = 1
    kept = all_reduce_sum(read) > 0
    return all_reduce_sum(ids)[:, kept], chosen[kept]


def _ids_of_views(tokenizer: Tokenizer, batch: Batch, views: int) -> Tensor:
    """Ids (B, views, N) of random views of images, which depend on the batch; without views ids (B, N)."""
    if not views:
        return ids_of(tokenizer, to_float(batch.images), batch.labels)
    generator = torch.Generator().manual_seed(int(batch.indices[0]))
    with undivided():
        shown = [random_view(batch.images, generator) for _ in range(views)]
    return torch.stack([ids_of(tokenizer, images, batch.labels) for images in shown], 1)
