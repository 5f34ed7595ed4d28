"""Grids of cells as pictures: what stands in a cell becomes colour, a dot or strokes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DOT = 0.25  # diameter, of the side of a cell
STROKE = 0.12  # width, of the side of a cell


def enlarge(cells: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Cells (M, rows, columns, 3) as squares of so many pixels."""
    return cells.repeat(side, 1).repeat(side, 2)


def dots(marked: NDArray[np.bool_], side: int) -> NDArray[np.bool_]:
    """A dot in the middle of each marked cell (M, rows, columns): True on it, (M, rows · side, columns · side)."""
    across = np.arange(side) - (side - 1) / 2
    dot = np.hypot(across, across[:, None]) <= max(DOT * side / 2, 0.75)  # (side, side); one to four pixels at least
    rows, columns = marked.shape[1:]
    picture: NDArray[np.bool_] = marked.repeat(side, 1).repeat(side, 2) & np.tile(dot, (rows, columns))
    return picture


def strokes(histograms: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Histograms (M, rows, columns, bins) of gradients as strokes along the edges: brightness in [0, 1].

    Bin b holds the gradients at angles from b·π/bins to (b + 1)·π/bins, x to the right and y down; the edge is at a
    right angle. Each bin is a stroke through its cell as bright as its weight; of strokes that cross, the brightest.
    """
    count, rows, columns, bins = histograms.shape
    picture = np.zeros((count, rows, side, columns, side), dtype=np.float32)
    for b in range(bins):
        weights = histograms[..., b].clip(0, 1)  # a prediction may be anything
        np.maximum(picture, weights[:, :, None, :, None] * _stroke((b + 0.5) * math.pi / bins, side), out=picture)
    return picture.reshape(count, rows * side, columns * side)


def _stroke(angle: float, side: int) -> NDArray[np.float32]:
    """A smooth stroke across a cell, at a right angle to the gradient: (side, 1, side), to lie on many cells."""
    x = np.arange(side) - (side - 1) / 2
    y = x[:, None]
    off = np.abs(x * math.cos(angle) + y * math.sin(angle))  # distances from the edge, along the gradient
    along = np.abs(x * math.sin(angle) - y * math.cos(angle))
    width = (max(STROKE * side, 1) + 1) / 2 - off
    length = side / 2 - along
    stroke: NDArray[np.float32] = (width.clip(0, 1) * length.clip(0, 1)).astype(np.float32)
    return stroke[:, None, :]
