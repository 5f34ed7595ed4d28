"""Colours that stay with a token from picture to picture, and cells of a grid in colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import hsv_to_rgb
from numpy.typing import NDArray

# Steps of hue, saturation and value from one id to the next. The golden ratio spreads any number of hues evenly;
# the other two spread evenly in the plane and keep similar hues of a large codebook apart.
_STEPS = (0.6180339887, 0.7548776662, 0.5698402910)
_LOWEST, _RANGE = (0.0, 0.40, 0.55), (1.0, 0.50, 0.42)  # neither grey nor black


def token_colors(ids: NDArray[np.int64] | Sequence[int]) -> NDArray[np.uint8]:
    """A colour (…, 3) for each of ids (…): always the same for the same id.

    >>> token_colors([0, 1]).shape
    (2, 3)
    """
    places = np.asarray(ids, dtype=np.float64)[..., None] * _STEPS % 1.0  # (…, 3) in [0, 1)
    colors: NDArray[np.uint8] = np.rint(hsv_to_rgb(_LOWEST + places * _RANGE) * 255).astype(np.uint8)
    return colors


def paler(colors: NDArray[np.uint8], share: float = 0.35) -> NDArray[np.uint8]:
    """Colours (…, 3) of which only a share is left on white."""
    left: NDArray[np.uint8] = np.rint(255 - share * (255.0 - colors)).astype(np.uint8)
    return left


def enlarge(cells: NDArray[Any], side: int) -> NDArray[Any]:
    """Cells (M, rows, columns, …) as squares of so many pixels."""
    return cells.repeat(side, 1).repeat(side, 2)
