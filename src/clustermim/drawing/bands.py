"""Bands of pictures: named rows, and a column for each image; and a page that is one band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.drawing.page import FAINT, Page, draw_size, shorten, text_width, to_png, to_rgb, wrap

GAP = 16  # between columns; rows stand closer
SIDE, LARGEST = 192, 340  # longer side of an image on the page: about SIDE for a small one, LARGEST at most
MARGIN, NARROWEST = 50, 1100  # the title needs as much

Size = tuple[int, int]  # height and width of an image on the page
Rows = dict[str, NDArray[np.uint8]]  # name → pictures (M, h, w, 3), of any resolution


def draw_band(
    page: Page,
    rows: Rows,
    captions: Sequence[str] | None,
    size: Size,
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


def draw_rows(
    title: str,
    spec: str,
    shown: str,
    rows: Rows,
    size: Size,
    captions: Sequence[str] | None,
    notes: Sequence[str | None],
) -> bytes:
    """A page as a PNG: a title, where the images are from and what is shown of them, the rows, and notes on them."""
    gutter = max(text_width(name, 6) for name in rows) + GAP
    step = max(size[1] + 2, SIDE // 2) + GAP
    columns = max(len(pictures) for pictures in rows.values())
    page = Page(max(NARROWEST, gutter + columns * step - GAP) + 2 * MARGIN, len(rows) * size[0])
    room = page.width - 2 * MARGIN
    page.text(MARGIN, MARGIN, shorten(title, room, 10, "bold"), 10, weight="bold")
    origin = shorten(spec, room - text_width(shown, 8), 8)
    page.text(MARGIN, MARGIN + 40, origin + shown, 8, color=FAINT)
    y = draw_band(page, rows, captions, size, (MARGIN, MARGIN + 96), gutter, step) + GAP
    for note in notes:
        for line in wrap(note, room, 6) if note else ():
            page.text(MARGIN, y, line, 6, color=FAINT)
            y += 24
    return to_png(page.finish(y + MARGIN // 2))


def page_size(height: int, width: int) -> Size:
    """Height and width of an image on the page: a whole multiple or a whole part, to keep patches even."""
    longer = max(height, width)
    larger, smaller = max(1, round(SIDE / longer)), -(-longer // LARGEST)
    return max(1, height * larger // smaller), max(1, width * larger // smaller)


def rgb_of(images: Tensor) -> NDArray[np.uint8]:
    """Pictures (M, H, W, 3) of images (M, C, H, W) in [0, 1]."""
    return to_rgb(images.mul(255).round().to(torch.uint8).cpu().numpy())
