"""What the tokens of a tokenizer look like on a source: counts, typical patches and sample images, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Batch, Source, to_float
from clustermim.errors import ConfigError, DataError
from clustermim.patches import grid_size, patchify, unpatchify
from clustermim.tokenizers import Tokenizer, tokenize

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
    sizes = {"tokens": (tokens, 1), "patches": (patches, 1), "images": (images, 0), "max-images": (max_images, 1)}
    for option, (value, least) in sizes.items():
        if value < least:
            raise ConfigError(f"--{option} {value} is too small: {least} at least")
    accuracy_from_counts = _Tally(tokenizer, source, patches, torch.Generator().manual_seed(seed))
    samples = None
    fitting = BATCH_VALUES // (source.shape[0] * source.shape[1] * source.shape[2])
    size = max(images, 1, min(256, fitting))  # the sample images come from the first batch
    for batch, ids in tokenize(tokenizer, source, size, seed=seed, limit=max_images):
        accuracy_from_counts.add(batch, ids)
        samples = samples or _samples(batch, ids, tokenizer.patch_size, accuracy_from_counts.centers, images)
    if samples is None:
        raise DataError(f"{source.spec} gave no image to show")
    return accuracy_from_counts.gallery(tokens, samples)


class _Tally:
    """What is kept of the patches seen so far: counts, sums where they are needed, and a few patches a token."""

    def __init__(self, tokenizer: Tokenizer, source: Source, keep: int, generator: torch.Generator) -> None:
        self.tokenizer, self.source, self.generator = tokenizer, source, generator
        self.images = 0
        width = tokenizer.patch_size**2 * source.shape[0]
        self.best = BestPatches(keep, width)
        self.counts = torch.zeros(tokenizer.vocab_size, dtype=torch.long)
        classes = len(source.class_names) if source.labels is not None else 0
        self.class_counts = torch.zeros(tokenizer.vocab_size, classes, dtype=torch.long)
        self.centers = center_pictures(tokenizer)
        # Single precision: a mean for the eye, of a codebook that may be large.
        self.sums = torch.zeros(tokenizer.vocab_size if self.centers is None else 0, width)
        self.nearest = False

    def add(self, batch: Batch, ids: Tensor) -> None:
        """Take in images with their ids (B, N)."""
        flat = ids.flatten()
        patches = patchify(batch.images, self.tokenizer.patch_size).flatten(0, 1)  # (B · N, d) uint8
        self.images += len(ids)
        self.counts += torch.bincount(flat, minlength=len(self.counts))
        if batch.labels is not None:
            cells = flat * self.class_counts.shape[1] + batch.labels.repeat_interleave(ids.shape[1])
            self.class_counts.view(-1).index_add_(0, cells, torch.ones_like(cells))
        if self.centers is None:
            self.sums.index_add_(0, flat, patches.float())
        self.best.add(flat, self._scores(batch, ids).flatten(), patches)

    def _scores(self, batch: Batch, ids: Tensor) -> Tensor:
        """Scores (B, N), lower is better: squared distances to the centres, or random numbers for a random sample."""
        distances = self.tokenizer.distances(to_float(batch.images), ids)
        self.nearest = distances is not None
        return torch.rand(ids.shape, generator=self.generator) if distances is None else distances

    def gallery(self, tokens: int, samples: SampleImages) -> TokenGallery:
        """The most used tokens, of those that occur."""
        order = self.counts.argsort(descending=True, stable=True)[:tokens]
        shown = order[self.counts[order] > 0]
        if self.centers is None:
            centers = self._pictures((self.sums[shown] / self.counts[shown, None]).round().to(torch.uint8))
        else:
            centers = self.centers[shown]
        return TokenGallery(
            images=self.images,
            counts=self.counts.numpy(),
            class_counts=None if self.source.labels is None else self.class_counts.numpy(),
            class_names=self.source.class_names,
            shown=shown.numpy(),
            centers=centers.numpy(),
            has_centers=self.centers is not None,
            shows_means=self.tokenizer.shows_means or self.centers is None,
            nearest=self.nearest,
            patches=self._pictures(self.best.take(shown)).numpy(),
            samples=samples,
        )

    def _pictures(self, vectors: Tensor) -> Tensor:
        """Patches (…, p·p·C) as `patchify` gives them to pictures (…, C, p, p)."""
        side = self.tokenizer.patch_size
        return vectors.reshape(*vectors.shape[:-1], side, side, -1).movedim(-1, -3).contiguous()


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


def center_pictures(tokenizer: Tokenizer) -> Tensor | None:
    """The centres of a tokenizer that has them, (K, C, p, p) uint8."""
    centers = tokenizer.center_patches()
    return None if centers is None else centers.mul(255).round().to(torch.uint8).cpu()


def _samples(batch: Batch, ids: Tensor, patch_size: int, centers: Tensor | None, images: int) -> SampleImages:
    """The first images of a batch with their tokens; of a labelled one as many classes as possible."""
    chosen = torch.arange(len(ids))
    if batch.labels is not None:
        same = batch.labels[:, None] == batch.labels
        chosen = same.tril(-1).sum(1).argsort(stable=True)  # first those that are the first of their class
    chosen = chosen[:images]
    grid = grid_size(batch.images.shape[2], batch.images.shape[3], patch_size)
    rebuilt = None
    if centers is not None:
        vectors = centers.movedim(1, -1).flatten(1)  # (K, p·p·C), as `patchify` orders them
        rebuilt = unpatchify(vectors[ids[chosen]], grid, centers.shape[1]).numpy()
    return SampleImages(
        images=batch.images[chosen].numpy(),
        ids=ids[chosen].reshape(-1, *grid).numpy(),
        labels=None if batch.labels is None else batch.labels[chosen].numpy(),
        rebuilt=rebuilt,
    )
