"""The uniformity term of U-MAE: different images shall have different class tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import ConfigError
from clustermim.models.mim import Layout


def mean_similarity(features: Tensor) -> Tensor:
    """The mean over pairs i ≠ j of (zᵢᵀ zⱼ)², where z are the features (B, D) scaled to length 1; B ≥ 2.

    It is 1 where all point the same way and 0 where they are orthogonal. U-MAE's mean has the pairs i = j as well,
    which add a constant. Without them its expectation does not depend on the size of a batch, so that every rank and
    every accumulated part may compute its own.
    """
    z = F.normalize(features.float(), dim=1)
    squares = (z @ z.T).square()  # (B, B)
    pairs = len(z) * (len(z) - 1)
    return (squares.sum() - squares.diagonal().sum()) / pairs


def check_uniformity(weight: float, layout: Layout, images: int) -> None:
    """Refuse a weight that cannot be, or one that has no class tokens or no pairs of images to act on."""
    if not 0 <= weight < float("inf"):
        raise ConfigError(f"--uniformity {weight} is not a weight: 0 is off, and U-MAE's is 0.01")
    if weight and layout != "mae":
        raise ConfigError(f"--uniformity is for --layout mae, whose decoder reads the class token, not {layout}")
    if weight and images < 2:
        raise ConfigError(
            "--uniformity compares images, and here each is computed alone: raise --batch-size or lower --accumulate"
        )
