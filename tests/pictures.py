"""Random pictures for tests."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def pictures(*shape: int, seed: int = 0) -> Tensor:
    """Random images with values that a byte can hold."""
    draws = np.random.default_rng(seed).integers(0, 256, shape)
    return torch.from_numpy((draws / 255).astype(np.float32))
