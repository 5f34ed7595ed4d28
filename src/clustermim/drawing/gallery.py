"""What the tokens of a tokenizer look like on a source: counts, typical patches and sample images, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Batch, Source, to_float
from clustermim.drawing.colors import token_palette
from clustermim.errors import DataError
from clustermim.options import flat
from clustermim.patches import grid_size, patchify, unpatchify
from clustermim.tokenizers import Tokenizer, tokenize
from clustermim.tokenizers.base import check_sizes

BATCH_VALUES = 1 << 23  # pixel values in a batch: tens of megabytes as floats, whatever the size of an image


@dataclass(frozen=True)
class GalleryOptions:
    """What to look at, and how much of it to show.

    Args:
        tokens: how many of the most used tokens to show.
        patches: patches of each token: of k-means those nearest to its centre, of others a random sample.
        images: images to show with their token maps.
        max_images: images to look at, drawn at random.
        seed: of the random choices.
    """

    tokens: int = 24
    patches: int = 12
    images: int = 6
    max_images: int = 2000
    seed: int = 0


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

    counts: NDArray[np.int64]  # (K,) patches of each token
    class_counts: NDArray[np.int64] | None  # (K, classes); None without labels
    class_names: tuple[str, ...]
    shown: NDArray[np.int64]  # (T,) ids, most used first; only tokens that occur
    centers: NDArray[np.uint8]  # (T, C, p, p)
    shows_means: bool  # whether `centers` are only the means of patches
    nearest: bool  # whether the patches are those nearest to their token
    patches: NDArray[np.uint8]  # (T, n, C, p, p); black beyond `filled`
    samples: SampleImages
    colors: NDArray[np.uint8]  # (K, 3), of each token in maps

    @property
    def has_centers(self) -> bool:
        """Whether the tokenizer has centres."""
        return self.samples.rebuilt is not None

    @property
    def images(self) -> int:
        """How many were looked at."""
        return int(self.counts.sum()) // math.prod(self.samples.ids.shape[1:])

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


@flat
def collect_tokens(tokenizer: Tokenizer, source: Source, options: GalleryOptions = GalleryOptions()) -> TokenGallery:
    """Look at `max_images` random images of a source, and keep `patches` patches of the most used `tokens`."""
    least = {"tokens": 1, "patches": 1, "images": 0, "max_images": 1}
    check_sizes(**{name: (getattr(options, name), lowest) for name, lowest in least.items()})
    tokenizer.check_fitted()
    generator, samples = torch.Generator().manual_seed(options.seed), None
    side, classes = tokenizer.patch_size, len(source.class_names) if source.labels is not None else 1
    best = BestPatches(options.patches, side**2 * source.shape[0])
    table = torch.zeros(tokenizer.vocab_size, classes, dtype=torch.long)
    sums = torch.zeros(tokenizer.vocab_size, side**2 * source.shape[0])  # single precision: means for the eye
    centers = tokenizer.center_patches()
    centers = None if centers is None else centers.mul(255).round().to(torch.uint8).cpu()  # (K, C, p, p)
    size = max(
        options.images, 1, min(256, BATCH_VALUES // math.prod(source.shape))
    )  # the samples are of the first batch
    for batch, ids in tokenize(tokenizer, source, size, seed=options.seed, limit=options.max_images):
        flat, pixels = ids.flatten(), patchify(batch.images, side).flatten(0, 1)  # (B · N,), (B · N, d) uint8
        labels = ids.new_zeros(len(ids)) if batch.labels is None else batch.labels
        table.view(-1).index_add_(0, (ids * classes + labels[:, None]).flatten(), torch.ones_like(flat))
        sums.index_add_(0, flat, pixels.float())
        distances = tokenizer.distances(to_float(batch.images), ids)  # (B, N)
        priorities = torch.rand(ids.shape, generator=generator) if distances is None else distances
        best.add(flat, priorities.flatten(), pixels)
        samples = samples or _samples(batch, ids, side, centers, options.images)
    if samples is None:
        raise DataError(f"{source.spec} gave no image to show")
    counts = table.sum(1)
    shown = counts.argsort(descending=True, stable=True)[: min(options.tokens, int((counts > 0).sum()))]
    means = _pictures((sums[shown] / counts[shown, None]).round().to(torch.uint8), side)
    pictures = means if centers is None else centers[shown].numpy()
    shows_means, nearest = tokenizer.shows_means or centers is None, distances is not None
    nearby, colors = _pictures(best.take(shown), side), token_palette(tokenizer)
    use = counts.numpy(), None if source.labels is None else table.numpy(), source.class_names
    return TokenGallery(*use, shown.numpy(), pictures, shows_means, nearest, nearby, samples, colors)


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
        taken = self.patches.new_zeros(len(tokens), self.keep, self.patches.shape[1])
        for row, token in zip(taken, tokens, strict=True):
            own = self.patches[self.ids == token]
            row[: len(own)] = own
        return taken


def from_centers(centers: Tensor, ids: Tensor, grid: tuple[int, int]) -> Tensor:
    """Images (M, C, H, W) put together from the centres (K, C, p, p) of ids (M, N)."""
    vectors = centers.movedim(1, -1).flatten(1)  # (K, p·p·C), as `patchify` orders them
    return unpatchify(vectors[ids], grid, centers.shape[1])


def _pictures(vectors: Tensor, side: int) -> NDArray[np.uint8]:
    """Patches (…, p·p·C) as `patchify` gives them to pictures (…, C, p, p)."""
    return np.ascontiguousarray(vectors.reshape(*vectors.shape[:-1], side, side, -1).movedim(-1, -3).numpy())


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
