"""From images to the vectors that k-means clusters: one pipeline, saved with its tokenizer, and samples to fit it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data.randomness import ImageRandom
from clustermim.data.source import Source, prefetch, split, to_float
from clustermim.distributed import all_reduce_sum, broadcast, rank, world_size
from clustermim.errors import ConfigError, DataError
from clustermim.patches import grid_size, patchify
from clustermim.progress import track
from clustermim.teachers import Teacher
from clustermim.tokenizers.nearest import Vectors, as_float64

CHUNK = 8192  # rows at a time
LEAST = 1e-8  # of the largest variance: what a direction without any is divided by
READ = 256  # images read at a time
FEWEST = 8  # patches an image, at least: a huge source need not be read whole for a small sample


@dataclass
class Sample:
    """What is known of some patches, and the sums of it over every patch of the images they come from."""

    features: Tensor  # (n, D) float32; without a teacher the pixels, as bytes where the source has bytes
    positions: Tensor  # (n,) int64, places on the grid
    patches: Tensor  # (n, p·p·C) uint8, the pixels
    keys: Tensor  # (n,) float64 in [0, 1), random and in rising order
    sums: Tensor  # (N, D) float64, by place on the grid; zeros without a teacher
    images: int

    def __len__(self) -> int:
        return len(self.positions)


class Space(torch.nn.Module):
    """Images (B, C, H, W) to vectors (B·N, Q), patch by patch.

    Without a teacher a vector is the patch itself, with `normalize` brought to zero mean and unit variance. With a
    teacher it is what the teacher says of the patch. Then, each step being optional, in this order:
    `image_mean_weight` times the mean of the image is added; the mean of the position is taken away; vectors get
    length 1; they are rotated to their leading principal components and scaled to unit variance.

    Buffers, each of no rows where its step is off:
        means: (N, D), the mean feature at every position.
        middle: (D,), the mean of what is whitened.
        axes: (D, Q), the directions, scaled.
    """

    means: Tensor
    middle: Tensor
    axes: Tensor

    def __init__(
        self,
        patch_size: int,
        normalize: bool = False,
        teacher: Teacher | None = None,
        image_mean_weight: float = 0.0,
        l2_normalize: bool = False,
    ) -> None:
        super().__init__()
        self.patch_size, self.normalize, self.teacher = patch_size, normalize, teacher
        self.image_mean_weight, self.l2_normalize = image_mean_weight, l2_normalize
        self.register_buffer("means", torch.empty(0, 0))
        self.register_buffer("middle", torch.empty(0))
        self.register_buffer("axes", torch.empty(0, 0))

    def describe(self, images: Tensor) -> Tensor:
        """What is known of each patch of images (B, C, H, W), bytes or in [0, 1]: pixels, or features (B, N, D)."""
        if self.teacher is None:
            images = images if images.dtype == torch.uint8 else to_float(images)
            return patchify(images, self.patch_size)  # bytes stay bytes
        grid = grid_size(images.shape[2], images.shape[3], self.patch_size)
        features: Tensor = self.teacher(images if images.is_floating_point() else to_float(images), grid)
        if self.image_mean_weight:
            features = features + self.image_mean_weight * features.mean(1, keepdim=True)
        return features

    def embed(self, features: Tensor, positions: Tensor) -> Tensor:
        """Vectors (n, Q) of what `describe` gave (n, D) of patches at positions (n,) of the grid."""
        vectors = features.float().div(255) if features.dtype == torch.uint8 else features
        if self.normalize:
            variance, mean = torch.var_mean(vectors, dim=-1, keepdim=True)
            vectors = (vectors - mean) / (variance + 1e-6).sqrt()  # the normalisation of MAE's pixel targets
        if len(self.means):
            vectors = vectors - self.means[positions]
        if self.l2_normalize:
            vectors = F.normalize(vectors, dim=1)
        if len(self.axes):
            # In float64, and then rounded: the result must not depend on how many rows there are.
            white = as_float64(vectors - self.middle) @ as_float64(self.axes)  # (n, Q)
            vectors = white.float().to(vectors.device)
        return vectors

    def forward(self, images: Tensor) -> Tensor:
        found = self.describe(images)  # (B, N, D)
        positions = torch.arange(found.shape[1], device=found.device).repeat(len(found))  # (B·N,)
        return self.embed(found.flatten(0, 1), positions)

    def learn(self, sample: Sample, center_positions: bool, whiten: int) -> None:
        """Learn the means of positions and the whitening from a sample, the same on every rank."""
        dim = sample.features.shape[1]
        if whiten > dim:
            raise ConfigError(f"--whiten {whiten} is more than the {dim} numbers of the teacher's features")
        if center_positions:
            images = all_reduce_sum(torch.tensor(float(sample.images), dtype=torch.float64))
            self.means = (all_reduce_sum(sample.sums.clone()) / images).float()
        if whiten:
            self.middle, self.axes = self._whitening(sample, whiten)

    def vectors(self, sample: Sample) -> Vectors:
        """The vectors (n, Q) of a sample: made at once, or of pixels, which stay bytes, when they are asked for."""
        if self.teacher is None:
            return LazyVectors(self, sample)
        width = self.axes.shape[1] if len(self.axes) else sample.features.shape[1]
        found = torch.empty(len(sample), width)
        for rows, part in self._parts(sample):
            found[rows] = part
        return found

    def _parts(self, sample: Sample) -> Iterator[tuple[slice, Tensor]]:
        """Which rows, and their vectors, a few at a time: all together may not fit beside the features."""
        for start in range(0, len(sample), CHUNK):
            rows = slice(start, start + CHUNK)
            yield rows, self.embed(sample.features[rows], sample.positions[rows])

    def _whitening(self, sample: Sample, components: int) -> tuple[Tensor, Tensor]:
        """Mean (D,) and scaled leading principal directions (D, components) of the vectors of all ranks."""
        count = all_reduce_sum(torch.tensor(float(len(sample)), dtype=torch.float64))
        total = torch.zeros(sample.features.shape[1], dtype=torch.float64)
        for _, vectors in self._parts(sample):
            total += vectors.double().sum(0)
        mean = all_reduce_sum(total) / count
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for _, vectors in self._parts(sample):
            centred = vectors.double() - mean
            covariance += centred.t() @ centred
        values, axes = torch.linalg.eigh(all_reduce_sum(covariance) / count)  # ascending
        values, axes = values.flip(0)[:components], axes.flip(1)[:, :components]
        scales = values.clamp(min=float(values[0]) * LEAST).clamp(min=1e-30).rsqrt()
        return mean.float(), broadcast((axes * scales).float())


class LazyVectors:
    """The vectors of a sample, a slice at a time."""

    def __init__(self, space: Space, sample: Sample) -> None:
        self.space, self.sample = space, sample

    def __len__(self) -> int:
        return len(self.sample)

    def __getitem__(self, rows: slice, /) -> Tensor:
        return self.space.embed(self.sample.features[rows], self.sample.positions[rows])


def draw_sample(space: Space, source: Source, max_patches: int, seed: int) -> Sample:
    """At most `max_patches` random patches of a source: all of them, or equally many of each image read.

    Which they are, and their keys, depends on seed and image: the ranks share the images out, and together they hold
    the same as one would. Only what is kept stays in memory.
    """
    teacher, side = space.teacher, space.patch_size
    rows, columns = grid_size(*source.shape[1:], side)
    count, width = rows * columns, side**2 * source.shape[0]
    per_image = min(count, max_patches, max(FEWEST, max_patches // len(source)))
    mine = source.order(seed)[: max_patches // per_image][rank() :: world_size()]
    keys = _keys(seed, mine, per_image, stream=4)
    places = keys.argsort().argsort()  # where each patch goes, in the order of the keys: no second copy
    size, deep = len(places), source.dtype != np.uint8
    patches, positions = torch.empty(size, width, dtype=torch.uint8), torch.empty(size, dtype=torch.long)
    features = torch.empty(size, teacher.dim if teacher else width) if teacher or deep else patches
    sums = torch.zeros(count, features.shape[1], dtype=torch.float64)
    filled = torch.zeros(size, dtype=torch.bool)
    batches = zip(split(mine, READ), prefetch(map(source.read, split(mine, READ))), strict=True)
    for number, (asked, batch) in enumerate(track(batches, "reading patches", total=-(-len(mine) // READ))):
        chosen = torch.arange(count).expand(len(batch.images), -1)  # (B, per_image)
        if per_image < count:
            chosen = ImageRandom(seed, 0, batch.indices.numpy(), stream=3)(count).argsort(1)[:, :per_image]
        readable = torch.from_numpy(np.isin(asked, batch.indices.numpy()))
        at = number * READ * per_image
        own = places[at : at + len(asked) * per_image].view(-1, per_image)[readable].flatten()
        pixels = to_float(batch.images).mul(255).round().to(torch.uint8) if deep else batch.images
        patches[own], positions[own], filled[own] = _gather(patchify(pixels, side), chosen), chosen.flatten(), True
        if teacher is not None or deep:
            found = space.describe(batch.images)  # (B, N, D)
            sums += found.double().sum(0)
            features[own] = _gather(found, chosen)
    if not filled.any():
        raise DataError(f"{source.spec} gave no image to take patches from")
    kept = slice(None) if filled.all() else filled
    images = int(filled.sum()) // per_image
    return Sample(features[kept], positions[kept], patches[kept], keys.sort().values[kept], sums, images)


def _keys(seed: int, images: NDArray[np.int64], count: int, stream: int) -> Tensor:
    """Random keys in [0, 1) of so many patches of each image, flat."""
    parts = [ImageRandom(seed, 0, piece, stream)(count).flatten() for piece in split(images, READ * READ)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


def _gather(values: Tensor, chosen: Tensor) -> Tensor:
    """The rows (B · m, D) of values (B, N, D) at places (B, m)."""
    return values.gather(1, chosen[:, :, None].expand(-1, -1, values.shape[2])).flatten(0, 1)
