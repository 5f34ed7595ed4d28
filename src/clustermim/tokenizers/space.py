"""From images to the vectors that k-means clusters: one pipeline, fitted once and saved with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data.source import to_float
from clustermim.distributed import all_reduce_sum, broadcast
from clustermim.errors import ConfigError
from clustermim.patches import grid_size, patchify
from clustermim.teachers import Teacher
from clustermim.tokenizers.lloyd import Vectors
from clustermim.tokenizers.nearest import as_float64
from clustermim.tokenizers.sample import Sample

CHUNK = 8192  # rows at a time
LEAST = 1e-8  # of the largest variance: what a direction without any is divided by


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
