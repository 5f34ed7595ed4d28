"""From a teacher's features to the vectors that are clustered: centred by position, of unit length, whitened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.distributed import all_reduce_sum, broadcast
from clustermim.errors import ConfigError
from clustermim.tokenizers.feature_sample import FeatureSample
from clustermim.tokenizers.nearest import as_float64

CHUNK = 8192  # rows at a time
LEAST = 1e-8  # of the largest variance: what a direction without any is divided by


class FeatureSpace(torch.nn.Module):
    """Features (n, D) of patches at `positions` (n,) to vectors (n, Q).

    Each step is optional, and they come in this order: the mean feature of the position is taken away; vectors get
    length 1; they are rotated to their `whiten` leading principal components and scaled to unit variance.

    Buffers, each of no rows where its step is off:
        means: (N, D), the mean feature at every position.
        middle: (D,), the mean of what is whitened.
        axes: (D, Q), the directions, scaled.
    """

    means: Tensor
    middle: Tensor
    axes: Tensor

    def __init__(self, l2_normalize: bool, means: Tensor, middle: Tensor, axes: Tensor) -> None:
        super().__init__()
        self.l2_normalize = l2_normalize
        self.register_buffer("means", means)
        self.register_buffer("middle", middle)
        self.register_buffer("axes", axes)

    @classmethod
    def learn(cls, sample: FeatureSample, center_positions: bool, l2_normalize: bool, whiten: int) -> Self:
        """The space of a sample, the same on every rank."""
        dim = sample.features.shape[1]
        if whiten > dim:
            raise ConfigError(f"--whiten {whiten} is more than the {dim} numbers of the teacher's features")
        images = all_reduce_sum(torch.tensor(float(sample.images), dtype=torch.float64))
        means = (all_reduce_sum(sample.sums.clone()) / images).float() if center_positions else torch.empty(0, dim)
        space = cls(l2_normalize, means, torch.empty(0), torch.empty(0, 0))
        if whiten:
            space.middle, space.axes = _whitening(space, sample, whiten)
        return space

    @property
    def centers_positions(self) -> bool:
        return len(self.means) > 0

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        if self.centers_positions:
            features = features - self.means[positions]
        if self.l2_normalize:
            features = F.normalize(features, dim=1)
        if len(self.axes):
            # In float64, and then rounded: the result must not depend on how many rows there are.
            white = as_float64(features - self.middle) @ as_float64(self.axes)  # (n, Q)
            features = white.float().to(features.device)
        return features

    def vectors(self, sample: FeatureSample) -> Tensor:
        """All vectors (n, Q) of a sample."""
        width = self.axes.shape[1] if len(self.axes) else sample.features.shape[1]
        found = torch.empty(len(sample), width)
        for some, part in self.parts(sample):
            found[some] = part
        return found

    def parts(self, sample: FeatureSample) -> Iterator[tuple[slice, Tensor]]:
        """Which rows, and their vectors, a few at a time: all together may not fit beside the features."""
        for start in range(0, len(sample), CHUNK):
            some = slice(start, start + CHUNK)
            yield some, self(sample.features[some], sample.positions[some])


def _whitening(space: FeatureSpace, sample: FeatureSample, components: int) -> tuple[Tensor, Tensor]:
    """Mean (D,) and scaled leading principal directions (D, components) of a sample's vectors (n, D) of all ranks."""
    count = all_reduce_sum(torch.tensor(float(len(sample)), dtype=torch.float64))
    total = torch.zeros(sample.features.shape[1], dtype=torch.float64)
    for _, vectors in space.parts(sample):
        total += vectors.double().sum(0)
    mean = all_reduce_sum(total) / count
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for _, vectors in space.parts(sample):
        centred = vectors.double() - mean
        covariance += centred.t() @ centred
    values, axes = torch.linalg.eigh(all_reduce_sum(covariance) / count)  # ascending
    values, axes = values.flip(0)[:components], axes.flip(1)[:, :components]
    scales = values.clamp(min=float(values[0]) * LEAST).clamp(min=1e-30).rsqrt()
    return mean.float(), broadcast((axes * scales).float())
