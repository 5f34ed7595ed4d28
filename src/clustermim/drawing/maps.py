"""Token maps: sample images, the tokens of their patches in colour, and the images rebuilt from centres."""

from __future__ import annotations

from clustermim.drawing.bands import GAP, Rows, draw_band
from clustermim.drawing.colors import token_colors
from clustermim.drawing.gallery import TokenGallery
from clustermim.drawing.page import Page, to_rgb
from clustermim.drawing.tiles import GUTTER

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
    rows: Rows = {"image": to_rgb(samples.images), "tokens": token_colors(samples.ids)}
    if samples.rebuilt is not None:
        rows["rebuilt"] = to_rgb(samples.rebuilt)
    names = None if samples.labels is None else [gallery.class_names[label] for label in samples.labels]
    for start in range(0, count, in_band):
        band = slice(start, start + in_band)
        shown = {name: pictures[band] for name, pictures in rows.items()}
        y = draw_band(page, shown, names and names[band], size, (x, y), GUTTER, step) + GAP
    return y
