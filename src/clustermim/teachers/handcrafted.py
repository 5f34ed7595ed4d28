"""Teachers without weights: `hog:`, histograms of oriented gradients (what MaskFeat predicts), and `pixels:`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import ConfigError, TeacherError
from clustermim.patches import grid_size
from clustermim.teachers.base import Teacher, to_map
from clustermim.teachers.spec import TeacherSpec

BINS = 9  # orientations of half a turn, as MaskFeat has
SIDE = 8  # of a patch, where nobody asks for a grid
FLAT = 10 / 255**2  # is added to a window's variance, so that flat ones do not become noise


class HOGTeacher(Teacher):
    """HOG of every patch of the grid that is asked for: `hog:?cells=2` has 2 × 2 histograms a patch and channel."""

    has_position = False

    def __init__(self, spec: TeacherSpec) -> None:
        super().__init__()
        self.spec, self.cells, self.channels = spec.text, spec.integer("cells", 1), spec.integer("channels", 3)
        self.dim = self.channels * self.cells**2 * BINS

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        height, width = images.shape[2:]
        if grid is None:  # that of the largest patches up to SIDE that images divide into
            fitting = (s for s in range(SIDE, 0, -1) if not (s % self.cells or height % s or width % s))
            grid = (height // (own := next(fitting, SIDE)), width // own)
        rows, columns = grid
        side = height // max(rows, 1)
        if side < max(2, self.cells) or side % self.cells or (side * rows, side * columns) != (height, width):
            raise TeacherError(
                f"{self.spec}: images of {height}×{width} pixels do not divide into {rows}×{columns} square patches of "
                f"2 pixels or more in {self.cells}×{self.cells} cells: choose another --patch-size or ?cells="
            )
        return to_map(hog(images, side, cell=side // self.cells), grid)


class PixelTeacher(Teacher):
    """The pixels of every patch, `pixels:?patch=4`, or of a window around it, `pixels:?patch=4&window=8&normalize=1`.

    Windows are mirrored beyond the border. Normalised ones have zero mean and about unit variance over all channels.
    """

    has_position = False

    def __init__(self, spec: TeacherSpec) -> None:
        super().__init__()
        self.spec, self.patch, self.channels = spec.text, spec.integer("patch", 4), spec.integer("channels", 3)
        self.window = spec.integer("window", self.patch, minimum=self.patch)
        if (self.window - self.patch) % 2:
            spec.refuse("window", f"{self.patch} or wider by an even number, the same on both sides")
        self.normalize = spec.integer("normalize", 0, minimum=0) > 0
        self.dim = self.channels * self.window**2

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        height, width = images.shape[2:]
        margin = (self.window - self.patch) // 2
        if height % self.patch or width % self.patch or margin >= min(height, width):
            raise TeacherError(
                f"{self.spec}: images of {height}×{width} pixels do not have patches of {self.patch} in windows of "
                f"{self.window}: choose another ?patch= or &window="
            )
        padded = F.pad(images, (margin,) * 4, mode="reflect")
        windows = F.unfold(padded, self.window, stride=self.patch)  # (B, dim, N)
        if self.normalize:
            variance, mean = torch.var_mean(windows, dim=1, keepdim=True, correction=0)
            windows = (windows - mean) / (variance + FLAT).sqrt()
        return windows.reshape(len(images), self.dim, height // self.patch, width // self.patch)


def default_cell(patch_size: int) -> int:
    """Side of a HOG cell: half the patch, as MaskFeat's 8 of 16, but a histogram of under 16 pixels says little.

    >>> [default_cell(patch_size) for patch_size in (2, 4, 8, 14, 16)]
    [2, 4, 4, 7, 8]
    """
    if patch_size < 2:
        raise ConfigError(f"a patch of {patch_size} pixel has no gradients: HOG needs a patch size of 2 or more")
    return patch_size if patch_size % 2 or patch_size < 8 else patch_size // 2


def hog(images: Tensor, patch_size: int, cell: int | None = None) -> Tensor:
    """Images (B, C, H, W) to histograms (B, N, C·cells·9), row-major over the patches.

    Gradients are differences [−1, 0, 1] of the reflected image. Each pixel votes with its gradient's length for
    one of nine orientations of half a turn (a whole vote for one bin, as in MaskFeat). The histogram of a cell
    and channel has length 1; a patch is its channels, each with its cells row by row: (C, cells, bins).
    Left out of MaskFeat's own code: the smoothing across the gradient (Sobel) and the Gaussian window.
    """
    batch, channels, height, width = images.shape
    rows, columns = grid_size(height, width, patch_size)
    cell = cell or default_cell(patch_size)
    side = patch_size // cell
    length, orientation = _gradients(images)
    y, x = torch.arange(height, device=images.device) // cell, torch.arange(width, device=images.device) // cell
    cells = y[:, None] * (width // cell) + x  # (H, W), the cell of each pixel
    found = length.new_zeros((batch, channels, height * width // cell**2 * BINS))
    found.scatter_add_(2, (cells * BINS + orientation).flatten(2), length.flatten(2))
    # A cell without edges stays zero: below this length there are only rounding errors of flat colour.
    found = F.normalize(found.reshape(batch, channels, rows, side, columns, side, BINS), dim=-1, eps=1e-5)
    return found.permute(0, 2, 4, 1, 3, 5, 6).flatten(3).flatten(1, 2)  # from (B, rows, columns, C, …)


def _gradients(images: Tensor) -> tuple[Tensor, Tensor]:
    """Length and orientation bin, both (B, C, H, W), of the gradient at each pixel."""
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    x = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    y = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    flat = (x == 0) & (y == 0)  # where the length has no gradient of its own
    length = torch.hypot(torch.where(flat, 1.0, x), y).masked_fill(flat, 0.0) if x.requires_grad else torch.hypot(x, y)
    # Opposite directions are one orientation: turn all into [0, π) first, where 0 is exact and π never reached
    # but by rounding. Folding the angle afterwards would put half of all vertical edges into the last bin.
    turn = torch.where((y < 0) | ((y == 0) & (x < 0)), -1.0, 1.0)
    angle = torch.atan2((y * turn).abs_(), x * turn)
    return length, (angle * (BINS / math.pi)).long().clamp_(max=BINS - 1)
