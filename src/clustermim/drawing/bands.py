"""A band of pictures: named rows, and a column for each image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clustermim.drawing.page import FAINT, Page, draw_size, shorten

GAP = 16  # between columns; rows stand closer

Rows = dict[str, NDArray[np.uint8]]  # name → pictures (M, h, w, 3), of any resolution


def draw_band(
    page: Page,
    rows: Rows,
    captions: Sequence[str] | None,
    size: tuple[int, int],
    corner: tuple[int, int],
    gutter: int,
    step: int,
) -> int:
    """Every picture at `size` (height, width), `step` pixels apart and right of the rows' names; gives the y below."""
    x, y = corner
    if captions is not None:
        for column, name in enumerate(captions):
            page.text(x + gutter + column * step, y, shorten(name, step - GAP, 6), 6, color=FAINT)
        y += 26
    between = step - size[1] - 2  # the frame takes two pixels
    for name, pictures in rows.items():
        page.text(x, y + 4, name, 6, color=FAINT)
        # one picture a row: each takes matplotlib milliseconds
        gap = ((0, 0), (0, between), (0, 0))
        strip = [np.pad(draw_size(picture, size), gap, constant_values=255) for picture in pictures]
        page.picture(x + gutter, y, np.concatenate(strip, axis=1)[:, :-between])
        y += max(size[0], 24) + GAP // 2
    return y
