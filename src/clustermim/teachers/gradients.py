"""`hog:`, histograms of oriented gradients: a teacher without weights."""

from __future__ import annotations

from torch import Tensor

from clustermim.errors import ConfigError, TeacherError
from clustermim.teachers.base import Teacher, to_map
from clustermim.teachers.hog import BINS, hog
from clustermim.teachers.spec import TeacherSpec

SIDE = 8  # of a patch, where nobody asks for a grid


class HOGTeacher(Teacher):
    """HOG of every patch of the grid that is asked for, a patch having `cells` × `cells` histograms a channel."""

    has_position = False

    def __init__(self, spec: str, cells: int, channels: int) -> None:
        super().__init__()
        self.spec, self.cells, self.channels = spec, cells, channels
        self.dim = channels * cells**2 * BINS

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        height, width = images.shape[2:]
        rows, columns = grid or self._own_grid(height, width)
        side = height // max(rows, 1)
        if side < self.cells or side % self.cells or (side * rows, side * columns) != (height, width):
            raise TeacherError(
                f"{self.spec}: images of {height}×{width} pixels do not divide into {rows}×{columns} square patches of "
                f"{self.cells}×{self.cells} cells: choose another --patch-size or ?cells="
            )
        try:
            found = hog(images, side, cell=side // self.cells)  # (B, N, dim)
        except ConfigError as error:
            raise TeacherError(f"{self.spec}: {error}") from error
        return to_map(found, (rows, columns))

    def _own_grid(self, height: int, width: int) -> tuple[int, int]:
        """The grid of the largest patches up to SIDE that images divide into."""
        fitting = (s for s in range(SIDE, 0, -1) if not (s % self.cells or height % s or width % s))
        side = next(fitting, SIDE)
        return height // side, width // side


def open_hog(spec: TeacherSpec) -> HOGTeacher:
    """One histogram a patch and channel, or with `cells=2` four, as MaskFeat has."""
    if spec.place:
        raise TeacherError(f"{spec.text}: hog has no name; write hog: or hog:?cells=2")
    # One by default: a patch of 4 pixels has too few for more.
    return HOGTeacher(spec.text, spec.integer("cells", 1), spec.integer("channels", 3))
