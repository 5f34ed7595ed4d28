"""What the decoder predicts of a masked patch, and its loss: pixels, HOG, tokens. A new target is one class."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.patches import grid_size, patchify
from clustermim.tokenizers import Tokenizer


class Target(torch.nn.Module, ABC):
    """Images (B, C, H, W), float32 in [0, 1], to what is predicted of each patch, row-major over the grid.

    Ids (B, N) or values (B, N, dim), without gradient. It is no part of the model: nothing in it is learned.

    Attributes:
        kind: the name under which it is found in `TARGETS`.
        dim: width of the head that predicts it.
        patch_size: side of a square patch in pixels.
        channels: channels of the images it takes.
        needs_labels: True when it is called with `target(images, labels)`.
    """

    kind: str
    dim: int
    patch_size: int
    channels: int
    needs_labels: bool = False

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N) or values (B, N, dim) of all patches; labels (B,) only for an oracle."""

    @abstractmethod
    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean loss of predictions (B, m, dim) of m masked patches, whose targets are (B, m) or (B, m, dim)."""


def select(values: Tensor, indices: Tensor) -> Tensor:
    """The patches at indices (B, m) of values (B, N) or (B, N, D): (B, m) or (B, m, D)."""
    places = indices.reshape(*indices.shape, *[1] * (values.ndim - 2))
    return values.gather(1, places.expand(*indices.shape, *values.shape[2:]))


class PixelTarget(Target):
    """The pixels of a patch, as MAE predicts them: of the image normalised by the channels' mean and std.

    With `normalize` each patch is normalised by its own: (x − mean) / √(var + 1e-6), var unbiased, as MAE does.
    """

    kind = "pixels"

    def __init__(
        self, patch_size: int, channels: int, mean: Sequence[float], std: Sequence[float], normalize: bool = False
    ) -> None:
        super().__init__()
        if not len(mean) == len(std) == channels:
            raise ConfigError(f"{channels} channels need as many means and stds, not {len(mean)} and {len(std)}")
        self.patch_size, self.channels, self.normalize = patch_size, channels, normalize
        self.dim = patch_size * patch_size * channels
        if normalize and self.dim < 2:
            raise ConfigError("a patch of one value cannot be normalised by its own spread: choose a larger patch size")
        spread = [value if value > 0 else 1.0 for value in std]  # a channel that never varies is only centred
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(channels, 1, 1))
        self.register_buffer("std", torch.tensor(spread, dtype=torch.float32).reshape(channels, 1, 1))

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Pixels (B, N, p·p·C)."""
        patches = self._patches(images)
        if not self.normalize:
            return patches
        spread, centre = _own(patches)
        return (patches - centre) / spread

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(prediction.to(values.dtype), values)

    @torch.no_grad()
    def to_pixels(self, values: Tensor, images: Tensor) -> Tensor:
        """Predictions (B, N, dim) as pixels in [0, 1], laid out as `patchify` does.

        With `normalize` each patch gets the mean and spread of the true one: the picture knows more than the model.
        """
        if self.normalize:
            spread, centre = _own(self._patches(images))
            values = values * spread + centre
        positions = self.patch_size**2  # channels are last inside a patch
        std, mean = self.std.flatten().repeat(positions), self.mean.flatten().repeat(positions)
        return (values * std + mean).clamp(0, 1)

    def _patches(self, images: Tensor) -> Tensor:
        _check_channels(self, images)
        return patchify((images - self.mean) / self.std, self.patch_size)


def _own(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Spread and mean (B, N, 1) of each patch."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return (variance + 1e-6).sqrt(), mean


class HOGTarget(Target):
    """Histograms of oriented gradients, as MaskFeat predicts them.

    Gradients are differences [−1, 0, 1] of the reflected image. Each pixel votes with its gradient's length for
    one of `bins` orientations of half a turn (a whole vote for one bin, as in MaskFeat). The histogram of a cell
    and channel has length 1; a patch is its channels, each with its cells row by row: (C, cells, bins).
    Left out of MaskFeat's own code: the smoothing across the gradient (Sobel) and the Gaussian window.
    """

    kind = "hog"

    def __init__(self, patch_size: int, channels: int, bins: int = 9, cell: int | None = None) -> None:
        super().__init__()
        cell = default_cell(patch_size) if cell is None else cell
        if patch_size < 2:
            raise ConfigError(f"a patch of {patch_size} pixel has no gradients: HOG needs a patch size of 2 or more")
        if bins < 1 or cell < 1 or patch_size % cell:
            raise ConfigError(f"HOG needs at least one bin and cells that divide the patch: {bins=}, {cell=}")
        self.patch_size, self.channels, self.bins, self.cell = patch_size, channels, bins, cell
        self.dim = channels * (patch_size // cell) ** 2 * bins

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Histograms (B, N, C·cells·bins)."""
        _check_channels(self, images)
        batch, channels, height, width = images.shape
        rows, columns = grid_size(height, width, self.patch_size)
        side = self.patch_size // self.cell
        x = self._cells(images).reshape(batch, channels, rows, side, columns, side, self.bins)
        # A cell without edges stays zero: below this length there are only rounding errors of flat colour.
        x = F.normalize(x, dim=-1, eps=1e-5)
        x = x.permute(0, 2, 4, 1, 3, 5, 6)  # (B, rows, columns, C, side, side, bins)
        return x.reshape(batch, rows * columns, self.dim)

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(prediction.to(values.dtype), values)

    def _cells(self, images: Tensor) -> Tensor:
        """Histogram of every cell of the image: (B, C, (H / cell)·(W / cell)·bins)."""
        batch, channels, height, width = images.shape
        length, orientation = _gradients(images, self.bins)
        rows = torch.arange(height, device=images.device) // self.cell
        columns = torch.arange(width, device=images.device) // self.cell
        cells = rows[:, None] * (width // self.cell) + columns  # (H, W), the cell of each pixel
        places = (cells * self.bins + orientation).flatten(2)  # (B, C, H·W)
        counts = length.new_zeros((batch, channels, height * width // self.cell**2 * self.bins))
        return counts.scatter_add_(2, places, length.flatten(2))


def default_cell(patch_size: int) -> int:
    """Side of a HOG cell: half the patch, as MaskFeat's 8 of 16, but a histogram of under 16 pixels says little.

    >>> [default_cell(patch_size) for patch_size in (2, 4, 8, 14, 16)]
    [2, 4, 4, 7, 8]
    """
    return patch_size if patch_size % 2 or patch_size < 8 else patch_size // 2


def _gradients(images: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Length and orientation bin, both (B, C, H, W), of the gradient at each pixel."""
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    x = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    y = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    length = torch.hypot(x, y)
    # Opposite directions are one orientation: turn all into [0, π) first, where 0 is exact and π never reached
    # but by rounding. Folding the angle afterwards would put half of all vertical edges into the last bin.
    turn = torch.where((y < 0) | ((y == 0) & (x < 0)), -1.0, 1.0)
    angle = torch.atan2((y * turn).abs_(), x * turn)
    return length, (angle * (bins / math.pi)).long().clamp_(max=bins - 1)


class TokenTarget(Target):
    """The ids that a tokenizer gives: ClusterMIM, BEiT, and the label oracle."""

    kind = "tokens"

    def __init__(self, tokenizer: Tokenizer, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {label_smoothing} is not in 0 ≤ … < 1")
        if not hasattr(tokenizer, "channels_"):
            raise TokenizerError(f"this {tokenizer.kind} tokenizer is not fitted: call fit(source) or load one")
        self.tokenizer, self.label_smoothing = tokenizer, label_smoothing
        self.dim, self.patch_size, self.channels = tokenizer.vocab_size, tokenizer.patch_size, tokenizer.channels_
        self.needs_labels = tokenizer.needs_labels

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N)."""
        ids: Tensor = self.tokenizer(images, labels if self.needs_labels else None)
        return ids

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean cross-entropy over all masked patches."""
        logits = prediction.float().flatten(0, 1)  # (B·m, vocab_size)
        return F.cross_entropy(logits, values.flatten(), label_smoothing=self.label_smoothing)


TARGETS: dict[str, type[Target]] = {"pixels": PixelTarget, "hog": HOGTarget, "tokens": TokenTarget}


def _check_channels(target: Target, images: Tensor) -> None:
    if images.shape[1] != target.channels:
        raise DataError(
            f"the {target.kind} target is for {target.channels}-channel images, these have {images.shape[1]}: "
            f"add ?channels={target.channels} to the data spec"
        )
