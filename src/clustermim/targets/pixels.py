"""Pixels, as MAE and SimMIM predict them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source, channel_stats
from clustermim.errors import ConfigError
from clustermim.patches import DEFAULT_PATCH_SIZE, patchify
from clustermim.targets.base import PixelLoss, Target, TargetOptions


class PixelTarget(Target):
    """The pixels of a patch, as MAE predicts them: of the image normalised by the channels' mean and std.

    With `normalize` each patch is normalised by its own: (x − mean) / √(var + 1e-6), var unbiased, as MAE does.
    The error is squared, or absolute with `error="l1"`, as SimMIM's is.
    """

    kind = "pixels"
    takes = ("normalize_pixels", "pixel_loss")

    def __init__(
        self,
        patch_size: int,
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        normalize: bool = False,
        error: PixelLoss | None = None,
    ) -> None:
        super().__init__()
        if not len(mean) == len(std) == channels:
            raise ConfigError(f"{channels} channels need as many means and stds, not {len(mean)} and {len(std)}")
        self.patch_size, self.channels, self.normalize, self.error = patch_size, channels, normalize, error
        self.dim = patch_size * patch_size * channels
        if normalize and self.dim < 2:
            raise ConfigError("a patch of one value cannot be normalised by its own spread: choose a larger patch size")
        scale = [value if value > 0 else 1.0 for value in std]  # a channel that never varies is only centred
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(channels, 1, 1))
        self.register_buffer("std", torch.tensor(scale, dtype=torch.float32).reshape(channels, 1, 1))

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        size = (patch_size or DEFAULT_PATCH_SIZE, source.shape[0])
        return cls(*size, *channel_stats(source), options.normalize_pixels, options.pixel_loss)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Pixels (B, N, p·p·C)."""
        patches = self._patches(images)
        if not self.normalize:
            return patches
        std, mean = _own(patches)
        return (patches - mean) / std

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean squared error, or mean absolute error."""
        compare = F.l1_loss if self.error == "l1" else F.mse_loss
        return compare(prediction.to(values.dtype), values)

    @torch.no_grad()
    def to_pixels(self, values: Tensor, images: Tensor) -> Tensor:
        """Predictions (B, N, dim) as pixels in [0, 1], laid out as `patchify` does.

        With `normalize` each patch gets the mean and deviation of the true one: the picture knows more than the model.
        """
        if self.normalize:
            own_std, own_mean = _own(self._patches(images))
            values = values * own_std + own_mean
        positions = self.patch_size**2  # channels are last inside a patch
        std, mean = self.std.flatten().repeat(positions), self.mean.flatten().repeat(positions)
        return (values * std + mean).clamp(0, 1)

    def _patches(self, images: Tensor) -> Tensor:
        self.check_channels(images)
        return patchify((images - self.mean) / self.std, self.patch_size)


def _own(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean (B, N, 1) of each patch."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return (variance + 1e-6).sqrt(), mean
