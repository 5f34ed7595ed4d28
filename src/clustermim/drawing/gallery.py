"""What the tokens of a tokenizer look like on a source: counts, typical patches and sample images, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Batch, Source, to_float
from clustermim.errors import DataError
from clustermim.patches import grid_size, patchify, unpatchify
from clustermim.tokenizers import Tokenizer, tokenize
from clustermim.tokenizers.base import check_sizes

BATCH_VALUES = 1 << 23  # pixel values in a batch: tens of megabytes as floats, whatever the size of an image


@dataclass(frozen=True)
class SampleImages:
    """A few images with their tokens."""

    images: NDArray[np.uint8]  # (M, C, H, W)
    ids: NDArray[np.int64]  # (M, rows, columns)
    labels: NDArray[np.int64] | None  # (M,)
    rebuilt: NDArray[np.uint8] | None  # (M, C, H, W) of the centres of the tokens; None without centres


@dataclass(frozen=True)
class TokenGallery:
    """The use of all K tokens, and the patches of the T most used ones.

    A tokenizer with centres shows them; for any other, `centers` are the means of all patches. Where it is known how
    far patches are from their token, in the tokenizer's own space, the n patches are the nearest ones, nearest first;
    for any other they are a random sample.
    """

    images: int  # looked at
    counts: NDArray[np.int64]  # (K,) patches of each token
    class_counts: NDArray[np.int64] | None  # (K, classes); None without labels
    class_names: tuple[str, ...]
    shown: NDArray[np.int64]  # (T,) ids, most used first; only tokens that occur
    centers: NDArray[np.uint8]  # (T, C, p, p)
    has_centers: bool
    shows_means: bool  # whether `centers` are only the means of patches
    nearest: bool  # whether the patches are those nearest to their token
    patches: NDArray[np.uint8]  # (T, n, C, p, p); black beyond `filled`
    samples: SampleImages

    @property
    def faces(self) -> NDArray[np.uint8]:
        """(T, C, p, p): one picture of each shown token, its centre, or its nearest patch where a mean says little."""
        return self.patches[:, 0] if self.nearest and self.shows_means else self.centers

    @property
    def filled(self) -> NDArray[np.int64]:
        """(T,) how many of the n patches each shown token has."""
        return np.minimum(self.counts[self.shown], self.patches.shape[1])

    @property
    def used(self) -> int:
        """How many tokens occur."""
        return int(np.count_nonzero(self.counts))


def collect_tokens(
    tokenizer: Tokenizer,
    source: Source,
    *,
    tokens: int = 24,
    patches: int = 12,
    images: int = 6,
    max_images: int = 2000,
    seed: int = 0,
) -> TokenGallery:
    """Look at `max_images` random images of a source, and keep `patches` patches of the most used `tokens`."""
    check_sizes(tokens=(tokens, 1), patches=(patches, 1), images=(images, 0), max_images=(max_images, 1))
    tokenizer.check_fitted()
    generator, samples, seen = torch.Generator().manual_seed(seed), None, 0
    side, vocab, labelled = tokenizer.patch_size, tokenizer.vocab_size, source.labels is not None
    best = BestPatches(patches, side**2 * source.shape[0])
    classes = max(len(source.class_names), 1) if labelled else 1
    table = torch.zeros(vocab, classes, dtype=torch.long)
    centers = tokenizer.center_patches()
    centers = None if centers is None else centers.mul(255).round().to(torch.uint8).cpu()  # (K, C, p, p)
    # Single precision: a mean for the eye, of a codebook that may be large.
    sums = torch.zeros(vocab if centers is None else 0, side**2 * source.shape[0])
    size = max(images, 1, min(256, BATCH_VALUES // math.prod(source.shape)))  # the samples are of the first batch
    for batch, ids in tokenize(tokenizer, source, size, seed=seed, limit=max_images):
        flat, pixels = ids.flatten(), patchify(batch.images, side).flatten(0, 1)  # (B · N,), (B · N, d) uint8
        labels = ids.new_zeros(len(ids)) if batch.labels is None else batch.labels
        table.view(-1).index_add_(0, (ids * classes + labels[:, None]).flatten(), torch.ones_like(flat))
        if centers is None:
            sums.index_add_(0, flat, pixels.float())
        distances = tokenizer.distances(to_float(batch.images), ids)  # (B, N)
        priorities = torch.rand(ids.shape, generator=generator) if distances is None else distances
        best.add(flat, priorities.flatten(), pixels)
        samples = samples or _samples(batch, ids, side, centers, images)
        seen += len(ids)
    if samples is None:
        raise DataError(f"{source.spec} gave no image to show")
    counts = table.sum(1)
    shown = counts.argsort(descending=True, stable=True)[:tokens]
    shown = shown[counts[shown] > 0]
    if centers is None:
        pictures = _pictures((sums[shown] / counts[shown, None]).round().to(torch.uint8), side)
    else:
        pictures = centers[shown]
    return TokenGallery(
        images=seen,
        counts=counts.numpy(),
        class_counts=table.numpy() if labelled else None,
        class_names=source.class_names,
        shown=shown.numpy(),
        centers=pictures.numpy(),
        has_centers=centers is not None,
        shows_means=tokenizer.shows_means or centers is None,
        nearest=distances is not None,
        patches=_pictures(best.take(shown), side).numpy(),
        samples=samples,
    )


class BestPatches:
    """The patches with the lowest scores of every token, at most `keep` each; of equals the first seen.

    They lie in one list, sorted by token and score: it is never longer than what was seen, or than K · keep.
    """

    def __init__(self, keep: int, width: int) -> None:
        self.keep = keep
        self.ids = torch.empty(0, dtype=torch.long)
        self.scores = torch.empty(0)
        self.patches = torch.empty(0, width, dtype=torch.uint8)

    def add(self, ids: Tensor, scores: Tensor, patches: Tensor) -> None:
        """Merge patches (n, d) of tokens (n,) with scores (n,)."""
        ids, scores = torch.cat([self.ids, ids]), torch.cat([self.scores, scores])
        order = scores.argsort(stable=True)
        order = order[ids[order].argsort(stable=True)]  # by token, then score, then arrival
        tokens = ids[order]
        place = torch.arange(len(tokens)) - torch.searchsorted(tokens, tokens)  # among those of its token
        kept = order[place < self.keep]
        self.ids, self.scores = ids[kept], scores[kept]
        self.patches = torch.cat([self.patches, patches])[kept]

    def take(self, tokens: Tensor) -> Tensor:
        """The patches (T, keep, d) of some tokens, best first; zeros where a token has fewer."""
        first = torch.searchsorted(self.ids, tokens)
        count = torch.searchsorted(self.ids, tokens, right=True) - first
        place = torch.arange(self.keep)
        found = place < count[:, None]  # (T, keep)
        taken = torch.zeros(*found.shape, self.patches.shape[1], dtype=torch.uint8)
        taken[found] = self.patches[(first[:, None] + place)[found]]
        return taken


def from_centers(centers: Tensor, ids: Tensor, grid: tuple[int, int]) -> Tensor:
    """Images (M, C, H, W) put together from the centres (K, C, p, p) of ids (M, N)."""
    vectors = centers.movedim(1, -1).flatten(1)  # (K, p·p·C), as `patchify` orders them
    return unpatchify(vectors[ids], grid, centers.shape[1])


def _pictures(vectors: Tensor, side: int) -> Tensor:
    """Patches (…, p·p·C) as `patchify` gives them to pictures (…, C, p, p)."""
    return vectors.reshape(*vectors.shape[:-1], side, side, -1).movedim(-1, -3).contiguous()


def _samples(batch: Batch, ids: Tensor, patch_size: int, centers: Tensor | None, images: int) -> SampleImages:
    """The first images of a batch with their tokens; of a labelled one as many classes as possible."""
    chosen = torch.arange(len(ids))
    if batch.labels is not None:
        same = batch.labels[:, None] == batch.labels
        chosen = same.tril(-1).sum(1).argsort(stable=True)  # first those that are the first of their class
    chosen = chosen[:images]
    grid = grid_size(batch.images.shape[2], batch.images.shape[3], patch_size)
    return SampleImages(
        images=batch.images[chosen].numpy(),
        ids=ids[chosen].reshape(-1, *grid).numpy(),
        labels=None if batch.labels is None else batch.labels[chosen].numpy(),
        rebuilt=None if centers is None else from_centers(centers, ids[chosen], grid).numpy(),
    )
