"""`textures:`: the paper's toy model (its section on theory) as images, whose true tokens are known.

There are s classes of n prototype patches each; every pair of classes shares m of them, no three share any.
An image of class k is a grid of patches drawn at random from the n prototypes of k, with a little noise.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data.cache import fingerprint_of
from clustermim.data.source import Batch, Masks, Rows, Source
from clustermim.data.spec import SPLITS, Spec
from clustermim.errors import ConfigError, DataError
from clustermim.theory.toy import toy_incidence

# Least root-mean-square distance of two prototypes, of [0, 1], brightness aside: well above the default
# noise and untouched by the jitter, so that k-means can tell them apart.
_SEPARATION = 0.12
_ROUNDS = 200  # of candidate prototypes before giving up


class TextureSource(Source):
    """Images of patches drawn from known prototypes; image i is made from (seed, split, i) alone.

    Attributes:
        prototypes: (P, C, p, p) uint8; first those of class 0 alone, of class 1 alone, …, then those of the
            pairs of classes (0, 1), (0, 2), …
        incidence: (P, s), 1 where a prototype belongs to a class.
        grid: rows and columns of patches.
    """

    def __init__(self, spec: Spec) -> None:
        classes, points = spec.integer("classes", 4, minimum=2), spec.integer("points", 8)
        shared = spec.integer("shared", 2, minimum=0)
        try:
            self.incidence = toy_incidence(points, shared, classes)
        except ConfigError as error:
            raise DataError(f"{spec.text}: {error}") from None
        self.grid, self.patch_size = spec.pair("grid", (8, 8)), spec.integer("patch", 8)
        self.noise, self.jitter = spec.number("noise", 0.05), spec.number("jitter", 0.1)
        self.seed, self.split, self.spec = spec.integer("seed", 0, minimum=0), spec.split, spec.text
        channels, generator = spec.channels or 3, np.random.default_rng([self.seed, 2])
        self.prototypes = make_prototypes(len(self.incidence), channels, self.patch_size, generator, spec)
        self.shape = (channels, self.grid[0] * self.patch_size, self.grid[1] * self.patch_size)
        self.labels: NDArray[np.int64] = np.arange(spec.integer("images", 2000), dtype=np.int64) % classes
        self.class_names = tuple(f"texture {k}" for k in range(classes))
        self.masks = Masks(self.read_masks, tuple(f"prototype {number}" for number in range(len(self.prototypes))))
        self.skipped = {}
        settings = f"{self.split} {self.grid} {len(self.labels)} {self.noise!r} {self.jitter!r} {self.seed}"
        self.fingerprint = fingerprint_of("textures", settings, self.incidence, self.prototypes)
        # (s, n): the prototypes of each class, ascending
        self._members = np.stack([np.flatnonzero(self.incidence[:, k]) for k in range(classes)])

    def __len__(self) -> int:
        return len(self.labels)

    def patch_ids(self, indices: Rows) -> NDArray[np.int64]:
        """The prototype of each patch, (B, N), row by row over the grid."""
        return self._draw(self.rows(indices))[0]

    def read_masks(self, indices: Rows) -> Tensor:
        """The prototype of each pixel, (B, H, W) int16."""
        ids = torch.from_numpy(self.patch_ids(indices).astype(np.int16)).view(-1, *self.grid)
        return ids.repeat_interleave(self.patch_size, 1).repeat_interleave(self.patch_size, 2)

    def read(self, indices: Rows) -> Batch:
        rows = self.rows(indices)
        ids, generators = self._draw(rows)
        patches = self.prototypes[ids.reshape(len(ids), *self.grid)]  # (B, rows, columns, C, p, p)
        images = np.ascontiguousarray(patches.transpose(0, 3, 1, 4, 2, 5)).reshape(len(ids), *self.shape)
        if self.noise or self.jitter:
            noise = np.empty(images.shape, np.float32)
            for one, generator in zip(noise, generators, strict=True):
                brightness = generator.uniform(-255 * self.jitter, 255 * self.jitter)
                generator.standard_normal(out=one, dtype=np.float32)
                one *= 255 * self.noise
                one += brightness
            noise += images
            images = np.rint(noise, out=noise).clip(0, 255).astype(np.uint8)
        return self.batch(images, rows)

    def _draw(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[np.random.Generator]]:
        """The prototypes (B, N) of the images at these positions, and the generators that drew them."""
        points, patches = self._members.shape[1], self.grid[0] * self.grid[1]
        generators = [np.random.default_rng([self.seed, SPLITS.index(self.split), row]) for row in rows.tolist()]
        draws = [generator.integers(points, size=patches) for generator in generators]
        draws_of = np.reshape(draws, (len(rows), patches)).astype(np.int64)
        return self._members[self.labels[rows][:, None], draws_of], generators


def make_prototypes(
    count: int, channels: int, size: int, generator: np.random.Generator, spec: Spec
) -> NDArray[np.uint8]:
    """Smooth random patches (count, C, p, p) that differ from each other by at least `_SEPARATION`."""
    kept = np.empty((0, channels, size, size), np.uint8)
    for _ in range(_ROUNDS):
        for candidate in _candidates(count, channels, size, generator):
            if len(kept) == count:
                return kept
            # Root-mean-square distances in units of [0, 1], mean brightness set aside.
            difference = (kept.astype(np.float64) - candidate).reshape(len(kept), candidate.size) / 255
            if difference.std(axis=1).min(initial=1.0) >= _SEPARATION:
                kept = np.concatenate([kept, candidate[None]])
    raise DataError(
        f"{spec.text}: found only {len(kept)} of {count} prototypes that differ clearly; "
        "use fewer points or classes, or a larger patch"
    )


def _candidates(count: int, channels: int, size: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Patches (count, C, p, p) that blend two random colours by a wave, every other one around a spot."""
    draw = generator.uniform(0, 1, (8, count, 1, 1))
    places = (np.arange(size) + 0.5) / size - 0.5
    y, x = places[:, None] - (draw[0] - 0.5) * 0.6, places[None, :] - (draw[1] - 0.5) * 0.6
    angle, cycles = np.pi * draw[2], 0.4 + 1.6 * draw[3]
    grating = np.cos(2 * np.pi * (cycles * (x * np.cos(angle) + y * np.sin(angle)) + draw[4]))
    spot = 2 * np.exp(-(x * x + y * y) / (2 * (0.12 + 0.2 * draw[5]) ** 2)) - 1
    wave = np.where(draw[6] < 0.5, grating, spot)[:, None]  # (count, 1, p, p), within [-1, 1]
    # Colours keep off black and white, so that noise and jitter are seldom clipped.
    first, second = generator.uniform(0.15, 0.85, (2, count, channels, 1, 1))
    return np.rint(255 * (first + (second - first) * (wave + 1) / 2)).astype(np.uint8)  # type: ignore[no-any-return]
