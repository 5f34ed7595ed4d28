"""The convolutional autoencoder of every learned tokenizer: one vector for each patch, and images from such vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.patches import grid_size


class Residual(nn.Module):
    """x + 1×1(3×3(x)), (B, W, h, w) to the same.

    Nothing is normalised over the batch or the image: the vector of a patch depends on its surroundings only.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 3, padding=1)
        self.mix = nn.Conv2d(width, width, 1)
        start_at(self.mix, nn.init.zeros_)  # the identity: patches are coded one by one before they look around

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mix(F.gelu(self.spatial(F.gelu(x))))
        return out


class Autoencoder(nn.Module):
    """Images (B, C, H, W) to features (B, D, h, w), h = H / p, and values (B, E, h, w) back to images.

    Both halves work on the patch grid, where a CPU is fast: a patch embedding, residual blocks, a 1×1 convolution.

    Args:
        channels: C of the images.
        patch_size: side p of a patch.
        width: channels W inside.
        depth: residual blocks in each half.
        features: D, what the quantizer takes.
        values: E, what it gives.
        mean: of the channels of the images.
        std: of the channels of the images; they are normalised inside.
    """

    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)

    def __init__(
        self,
        channels: int,
        patch_size: int,
        width: int,
        depth: int,
        features: int,
        values: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None].clamp(min=1e-3))  # a constant channel has none
        self.embed = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.encoder = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.to_features = nn.Conv2d(width, features, 1)
        self.from_values = nn.Conv2d(values, width, 1)
        self.decoder = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.to_pixels = nn.Conv2d(width, channels * patch_size**2, 1)
        for layer in (self.embed, self.to_features, self.from_values, self.to_pixels):
            start_at(layer, nn.init.orthogonal_)  # keeps distances between patches: the first codebook is a good one

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] to features (B, D, h, w)."""
        grid_size(images.shape[2], images.shape[3], self.patch_size)
        x = self.embed((images - self.mean) / self.std)  # (B, W, h, w)
        out: Tensor = self.to_features(self.encoder(x))  # (B, D, h, w)
        return out

    def decode(self, values: Tensor) -> Tensor:
        """Values (B, E, h, w) to images (B, C, H, W), about [0, 1] but not clamped to it."""
        x = self.to_pixels(self.decoder(self.from_values(values)))  # (B, C·p·p, h, w)
        return F.pixel_shuffle(x, self.patch_size) * self.std + self.mean  # (B, C, H, W)

    def error(self, rebuilt: Tensor, images: Tensor) -> Tensor:
        """Mean squared error as a share of the variance of the images: 1 is what the mean colour would cost."""
        return F.mse_loss(rebuilt, images) / self.std.square().mean()


def start_at(layer: nn.Conv2d, initialise: Callable[[Tensor], Tensor]) -> None:
    """Initial weights of a layer, and a bias of zero."""
    initialise(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
