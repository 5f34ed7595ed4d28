"""Token maps: sample images, the tokens of their patches in colour, and the images rebuilt from centres."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clustermim.drawing.colors import token_colors
from clustermim.drawing.page import FAINT, Page, draw_size, shorten, to_rgb
from clustermim.report.gallery import TokenGallery
from clustermim.report.tiles import GUTTER

GAP = 16
SMALLEST, LARGEST = 160, 340  # longer side of an image on the page, its frame aside


def draw_maps(page: Page, gallery: TokenGallery, x: int, y: int) -> int:
    """A column for each image, in as many bands as they need; gives the y below."""
    samples = gallery.samples
    count, _, height, width = samples.images.shape
    room = page.width - 2 * x - GUTTER
    target = max(SMALLEST, min(LARGEST, (room + GAP) // max(count, 1) - GAP - 2))
    scale = target / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    step = max(size[1] + 2, SMALLEST) + GAP
    in_band = max(1, (room + GAP) // step)
    for start in range(0, count, in_band):
        places = range(start, min(start + in_band, count))
        y = _band(page, gallery, places, size, (x, y), step) + GAP
    return y


def _band(
    page: Page, gallery: TokenGallery, places: range, size: tuple[int, int], corner: tuple[int, int], step: int
) -> int:
    """Rows of images, maps and rebuilt images, side by side; gives the y below."""
    x, y = corner
    samples = gallery.samples
    if samples.labels is not None:
        for column, place in enumerate(places):
            name = gallery.class_names[samples.labels[place]]
            page.text(x + GUTTER + column * step, y, shorten(name, step - GAP, 6), 6, color=FAINT)
        y += 26
    rows: dict[str, NDArray[np.uint8]] = {"image": to_rgb(samples.images), "tokens": token_colors(samples.ids)}
    if samples.rebuilt is not None:
        rows["rebuilt"] = to_rgb(samples.rebuilt)
    for name, pictures in rows.items():
        page.text(x, y + 4, name, 6, color=FAINT)
        for column, place in enumerate(places):
            page.picture(x + GUTTER + column * step, y, draw_size(pictures[place], size))
        y += max(size[0], 24) + GAP // 2
    return y
