"""Bands of pictures: named rows, and a column for each image; cells of a grid as colours and dots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from clustermim.drawing.page import FAINT, MARGIN, Page, draw_size, shorten, text_width, to_rgb

GAP = 16  # between columns; rows stand closer
SIDE, LARGEST = 192, 340  # longer side of an image on the page: about SIDE for a small one, LARGEST at most
DOT = 0.25  # diameter, of the side of a cell

Size = tuple[int, int]  # height and width of an image on the page
Head = tuple[str, str, str]  # a title, where the images are from, and what is shown of them
Rows = dict[str, NDArray[np.uint8]]  # name → pictures (M, h, w, 3), of any resolution


def draw_band(
    page: Page, rows: Rows, captions: Sequence[str] | None, size: Size, y: int, gutter: int, step: int
) -> int:
    """Every picture at `size` (height, width), `step` pixels apart and right of the rows' names; gives the y below."""
    if captions is not None:
        for column, name in enumerate(captions):
            page.text(MARGIN + gutter + column * step, y, shorten(name, step - GAP, 6), 6, color=FAINT)
        y += 26
    for name, pictures in rows.items():
        page.text(MARGIN, y + 4, name, 6, color=FAINT)
        page.picture(MARGIN + gutter, y, strip(pictures, size, step - size[1] - 2))  # the frame takes two pixels
        y += max(size[0], 24) + GAP // 2
    return y


def strip(pictures: NDArray[np.uint8], size: Size, gap: int) -> NDArray[np.uint8]:
    """Pictures (M, h, w, 3) beside each other: one picture, as each takes matplotlib milliseconds."""
    framed = [np.pad(draw_size(p, size), ((0, 0), (0, gap), (0, 0)), constant_values=255) for p in pictures]
    return np.concatenate(framed, axis=1)[:, :-gap]


def draw_rows(head: Head, rows: Rows, size: Size, captions: Sequence[str] | None, *notes: str | None) -> Figure:
    """A page: its head, the rows, and notes on them."""
    gutter = max(text_width(name, 6) for name in rows) + GAP
    step = max(size[1] + 2, SIDE // 2) + GAP
    columns = max(len(pictures) for pictures in rows.values())
    page = Page(gutter + columns * step - GAP, len(rows) * size[0], *head)
    return page.finish(draw_band(page, rows, captions, size, page.top, gutter, step) + GAP, notes)


def page_size(height: int, width: int) -> Size:
    """Height and width of an image on the page: a whole multiple or a whole part, to keep patches even."""
    longer = max(height, width)
    larger, smaller = max(1, round(SIDE / longer)), -(-longer // LARGEST)
    return max(1, height * larger // smaller), max(1, width * larger // smaller)


def rgb_of(images: Tensor) -> NDArray[np.uint8]:
    """Pictures (M, H, W, 3) of images (M, C, H, W) in [0, 1]."""
    return to_rgb(images.mul(255).round().to(torch.uint8).cpu().numpy())


def enlarge(cells: NDArray[Any], side: int) -> NDArray[Any]:
    """Cells (M, rows, columns, …) as squares of so many pixels."""
    return cells.repeat(side, 1).repeat(side, 2)


def dots(marked: NDArray[np.bool_], side: int) -> NDArray[np.bool_]:
    """A dot in the middle of each marked cell (M, rows, columns): True on it, (M, rows · side, columns · side)."""
    across = np.arange(side) - (side - 1) / 2
    dot = np.hypot(across, across[:, None]) <= max(DOT * side / 2, 0.75)  # (side, side); one to four pixels at least
    picture: NDArray[np.bool_] = enlarge(marked, side) & np.tile(dot, marked.shape[1:])
    return picture
