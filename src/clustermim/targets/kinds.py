"""The targets: pixels (MAE, SimMIM), HOG and features (MaskFeat), tokens (ClusterMIM, BEiT), vectors of k-means."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source, channel_stats
from clustermim.errors import ConfigError
from clustermim.patches import DEFAULT_PATCH_SIZE, check_channels, grid_size, patchify
from clustermim.teachers import Teacher, open_teacher
from clustermim.teachers.base import hash_weights
from clustermim.teachers.handcrafted import BINS, default_cell, hog
from clustermim.tokenizers import KMeansTokenizer, Tokenizer, load_tokenizer

PixelLoss = Literal["l1"]
VectorLoss = Literal["cosine"]
UNMASKED = -100  # the id of a patch that is not masked and yet among those that are predicted


@dataclass(frozen=True)
class TargetOptions:
    """How the targets are made; each takes the options that it names.

    Args:
        tokenizer: the folder of a fitted tokenizer or `module:package.module:factory`, for tokens and vectors.
        tokenizers: the same of several tokenizers of equal patches, whose tokens are predicted side by side, for
            multi-tokens.
        teacher: whose features to predict, such as `run:FOLDER` for an encoder pretrained here.
        normalize_pixels: predict pixels normalised by the mean and spread of their patch.
        pixel_loss: `l1` is the mean absolute error, as in SimMIM; by default the error is squared.
        label_smoothing: share of the cross-entropy that all tokens have in common; MAGE's is 0.1.
        vector_loss: `cosine` compares directions only, as MaskFeat does with features; by default the error is squared.
    """

    tokenizer: str | None = None
    tokenizers: list[str] | None = None
    teacher: str | None = None
    normalize_pixels: bool = False
    pixel_loss: PixelLoss | None = None
    vector_loss: VectorLoss | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {self.label_smoothing} is no share: 0 is off, and 1 is too much")


class Target(torch.nn.Module, ABC):
    """Images (B, C, H, W), float32 in [0, 1], to what is predicted of each patch, row-major over the grid.

    Ids (B, N), or (B, N, T) of T tokenizers, or values (B, N, dim), without gradient. It is no part of the model:
    nothing in it is learned.

    Attributes:
        kind: the name under which it is found in `TARGETS`.
        takes: the fields of `TargetOptions` that it uses.
        dim: width of the head that predicts it.
        patch_size: side of a square patch in pixels.
        channels: channels of the images it takes.
        needs_labels: True when it is called with `target(images, labels)`.
    """

    kind: str
    takes: tuple[str, ...] = ()
    dim: int
    patch_size: int
    channels: int
    needs_labels: bool = False

    @classmethod
    @abstractmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        """The target for the images of a source; `patch_size` is None where nobody has chosen one."""

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N) or (B, N, T), or values (B, N, dim), of all patches; labels (B,) only for an oracle."""

    def version(self) -> str:
        """A hash of what it depends on, so that a run is not continued with another."""
        return hash_weights(self)

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean squared error of predictions (B, m, dim) of m masked patches, whose values are (B, m, dim)."""
        return F.mse_loss(prediction.to(values.dtype), values)


def unit_entries(vectors: Tensor) -> Tensor:
    """Vectors (…, dim) brought to length √dim, so that entries are about 1; zero stays zero."""
    return F.normalize(vectors, dim=-1) * math.sqrt(vectors.shape[-1])


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
        unbiased = (self.dim - 1) / self.dim  # a layer norm divides by the biased deviation
        return F.layer_norm(patches, (self.dim,), eps=1e-6 * unbiased).mul_(math.sqrt(unbiased))

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
        check_channels(images, self.channels, "the pixels target is for")
        return patchify((images - self.mean).div_(self.std), self.patch_size)


class HOGTarget(Target):
    """The HOG of a patch (see `clustermim.teachers.handcrafted`), regressed."""

    kind = "hog"

    def __init__(self, patch_size: int, channels: int) -> None:
        super().__init__()
        self.patch_size, self.channels = patch_size, channels
        self.dim = channels * (patch_size // default_cell(patch_size)) ** 2 * BINS

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        return cls(patch_size or DEFAULT_PATCH_SIZE, source.shape[0])

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Histograms (B, N, C·cells·9)."""
        check_channels(images, self.channels, "the hog target is for")
        return hog(images, self.patch_size)


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
        return unit_entries(found.float())

    def version(self) -> str:
        return self.teacher.version()


class TokenTarget(Target):
    """The ids that a tokenizer gives: ClusterMIM, BEiT, and the label oracle."""

    kind = "tokens"
    takes = ("tokenizer", "label_smoothing")

    def __init__(self, tokenizer: Tokenizer, smoothing: float = 0.0) -> None:
        super().__init__()
        tokenizer.check_fitted()
        self.tokenizer, self.smoothing = tokenizer, smoothing
        self.dim, self.patch_size, self.channels = tokenizer.vocab_size, tokenizer.patch_size, tokenizer.channels_
        self.needs_labels = tokenizer.needs_labels

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        return cls(named_tokenizer(options), options.label_smoothing)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N). Images come from a source here, so that their range need not be looked at in every step."""
        return self.tokenizer.ids(images, labels if self.needs_labels else None)

    def version(self) -> str:
        return self.tokenizer.version()

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean cross-entropy over all masked patches; those whose id is `UNMASKED` do not count."""
        scores = prediction.float().flatten(0, 1)  # (B·m, vocab_size)
        return F.cross_entropy(scores, values.flatten(), ignore_index=UNMASKED, label_smoothing=self.smoothing)


class VectorTarget(Target):
    """The vectors that a k-means tokenizer clusters, regressed: what its tokens are made of, without the clusters.

    With `error="cosine"` each vector has the same length, as the features of `FeatureTarget` have.
    """

    kind = "vectors"
    takes = ("tokenizer", "vector_loss")

    def __init__(self, tokenizer: Tokenizer, error: VectorLoss | None = None) -> None:
        super().__init__()
        if not isinstance(tokenizer, KMeansTokenizer):
            raise ConfigError(f"--target vectors needs a k-means tokenizer, and this is {tokenizer.kind}")
        tokenizer.check_fitted()
        self.tokenizer, self.error, self.dim = tokenizer, error, tokenizer.centers_.shape[1]
        self.patch_size, self.channels = tokenizer.patch_size, tokenizer.channels_

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        return cls(named_tokenizer(options), options.vector_loss)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Vectors (B, N, dim)."""
        found = self.tokenizer.space_(images).unflatten(0, (len(images), -1))
        return unit_entries(found) if self.error == "cosine" else found

    def version(self) -> str:
        return self.tokenizer.version()


def named_tokenizer(options: TargetOptions) -> Tokenizer:
    """The tokenizer that the options name."""
    if options.tokenizer is None:
        raise ConfigError("--target tokens and vectors need --tokenizer, the folder of a fitted tokenizer")
    return load_tokenizer(options.tokenizer)
