"""The targets of MAE and SimMIM (pixels), MaskFeat (HOG, features of a teacher), ClusterMIM and BEiT (tokens)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source, channel_stats
from clustermim.errors import ConfigError
from clustermim.patches import DEFAULT_PATCH_SIZE, grid_size, patchify
from clustermim.targets.base import PixelLoss, Target, TargetOptions
from clustermim.teachers import Teacher, open_teacher
from clustermim.teachers.handcrafted import BINS, hog, hog_size
from clustermim.tokenizers import Tokenizer, load_tokenizer


class PixelTarget(Target):
    """The pixels of a patch, as MAE predicts them: of the image normalised by the channels' mean and std.

    With `normalize` each patch is normalised by its own: (x − mean) / √(var + 1e-6), var unbiased, as MAE does.
    The error is squared, or absolute with `error="l1"`, as SimMIM's is.
    """

    kind = "pixels"
    takes = ("normalize_pixels", "pixel_loss")
    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)

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
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()

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
            variance, own = torch.var_mean(self._patches(images), dim=-1, keepdim=True)
            values = values * (variance + 1e-6).sqrt() + own
        positions = self.patch_size**2  # channels are last inside a patch
        std, mean = self.std.flatten().repeat(positions), self.mean.flatten().repeat(positions)
        return (values * std + mean).clamp(0, 1)

    def _patches(self, images: Tensor) -> Tensor:
        self.check_channels(images)
        return patchify((images - self.mean) / self.std, self.patch_size)


class HOGTarget(Target):
    """The HOG of a patch (see `clustermim.teachers.handcrafted`), regressed."""

    kind = "hog"

    def __init__(self, patch_size: int, channels: int, bins: int = BINS, cell: int | None = None) -> None:
        super().__init__()
        self.patch_size, self.channels, self.bins = patch_size, channels, bins
        self.cell, self.dim = hog_size(patch_size, channels, bins, cell)

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        return cls(patch_size or DEFAULT_PATCH_SIZE, source.shape[0])

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Histograms (B, N, C·cells·bins)."""
        self.check_channels(images)
        return hog(images, self.patch_size, self.bins, self.cell)


class FeatureTarget(Target):
    """What a teacher, who sees the whole image, says of a patch, regressed.

    As in MaskFeat each feature vector has the same length, here √dim: entries are then about 1, and the mean squared
    error is ‖prediction/√dim − feature/‖feature‖‖², which is 1 for predictions of zero whatever the width.
    """

    kind = "features"
    takes = ("teacher",)

    def __init__(self, teacher: Teacher, patch_size: int) -> None:
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.patch_size, self.channels, self.dim = patch_size, teacher.channels, teacher.dim

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        if options.teacher is None:
            raise ConfigError("--target features needs --teacher, such as run:FOLDER of an encoder pretrained here")
        return cls(open_teacher(options.teacher), patch_size or DEFAULT_PATCH_SIZE)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Features (B, N, dim), each of length √dim; one that is zero stays zero."""
        found = self.teacher(images, grid_size(images.shape[2], images.shape[3], self.patch_size))  # (B, N, dim)
        return F.normalize(found.float(), dim=-1) * math.sqrt(self.dim)

    def version(self) -> str:
        return self.teacher.version()


class TokenTarget(Target):
    """The ids that a tokenizer gives: ClusterMIM, BEiT, and the label oracle."""

    kind = "tokens"
    takes = ("tokenizer", "label_smoothing")

    def __init__(self, tokenizer: Tokenizer, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {label_smoothing} is not in 0 ≤ … < 1")
        tokenizer.check_fitted()
        self.tokenizer, self.label_smoothing = tokenizer, label_smoothing
        self.dim, self.patch_size, self.channels = tokenizer.vocab_size, tokenizer.patch_size, tokenizer.channels_
        self.needs_labels = tokenizer.needs_labels

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        if options.tokenizer is None:
            raise ConfigError("--target tokens needs --tokenizer, the folder of a fitted tokenizer")
        return cls(load_tokenizer(options.tokenizer), options.label_smoothing)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N)."""
        ids: Tensor = self.tokenizer(images, labels if self.needs_labels else None)
        return ids

    def version(self) -> str:
        return self.tokenizer.version()

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean cross-entropy over all masked patches."""
        logits = prediction.float().flatten(0, 1)  # (B·m, vocab_size)
        return F.cross_entropy(logits, values.flatten(), label_smoothing=self.label_smoothing)
