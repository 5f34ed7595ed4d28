"""The gallery: a row for each token with its centre, its patches and its classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clustermim.drawing.colors import FEW_CLASSES, class_colors, token_colors
from clustermim.drawing.gallery import TokenGallery
from clustermim.drawing.page import FAINT, Page, draw_size, shorten, text_width, to_rgb

GUTTER = 112  # colour, id and share of a token; the names of the rows of the maps
GAP = 4  # between patches
WIDE = 24  # between the parts of a row
BETWEEN = 72  # columns of rows
CELL, LARGEST = 44, 64  # side of a patch on the page: a whole multiple of its pixels from CELL on
TARGET = 2250  # width of the page, about
TOP_CLASSES = 3  # named in each row when there are too many for colours
CLASSES = 210  # width of the classes of a token
HEADER = 30


class Tiles:
    """Where everything in the gallery goes, in pixels."""

    def __init__(self, gallery: TokenGallery) -> None:
        self.gallery = gallery
        side = int(gallery.patches.shape[-1])
        self.cell = min(-(-CELL // side) * side, LARGEST)
        self.step = self.cell + 2 + GAP
        self.patches_at = GUTTER + self.step + WIDE
        self.classes_at = self.patches_at + int(gallery.filled.max()) * self.step - GAP + WIDE
        self.classes = len(gallery.class_names) if gallery.class_counts is not None else 0
        self.bar = min(40, CLASSES // max(self.classes, 1))
        self.row_width = self.classes_at + CLASSES if self.classes else self.classes_at - WIDE
        self.row_height = max(self.cell + 2, 48) + 14
        rows = len(gallery.shown)
        self.columns = max(1, min((TARGET + BETWEEN) // (self.row_width + BETWEEN), -(-rows // 4)))
        self.rows = -(-rows // self.columns)
        self.width = self.columns * (self.row_width + BETWEEN) - BETWEEN
        self.height = HEADER + self.rows * self.row_height  # the legend aside

    def draw(self, page: Page, x: int, y: int) -> int:
        """Draw the gallery, and give the y below it."""
        if 0 < self.classes <= FEW_CLASSES:
            y = self._legend(page, x, y)
        shares = self._shares()
        for column in range(self.columns):
            left = x + column * (self.row_width + BETWEEN)
            self._header(page, left, y, float(shares.max(initial=0)))
            for place in range(self.rows):
                row = column * self.rows + place
                if row < len(self.gallery.shown):
                    self._row(page, left, y + HEADER + place * self.row_height, row, shares)
        return y + self.height

    def _shares(self) -> NDArray[np.float64]:
        """(T, classes) class shares of the shown tokens."""
        if self.gallery.class_counts is None:
            return np.zeros((len(self.gallery.shown), 0))
        counts = self.gallery.class_counts[self.gallery.shown]
        shares: NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
        return shares

    def _legend(self, page: Page, x: int, y: int) -> int:
        """The names of the classes beside their colours, in as many lines as they need."""
        left = x
        for name, color in zip(self.gallery.class_names, class_colors(self.classes), strict=True):
            name = shorten(name, 360)
            needed = 24 + text_width(name)
            if left > x and left + needed > page.width - x:
                left, y = x, y + 28
            page.box(left, y + 2, 16, 16, color)
            page.text(left + 24, y, name)
            left += needed + 32
        return y + 40

    def _header(self, page: Page, x: int, y: int, most: float) -> None:
        names = {0: "token", GUTTER: "mean" if self.gallery.shows_means else "centre"}
        names[self.patches_at] = "nearest" if self.gallery.nearest else "random"
        if self.classes > FEW_CLASSES:
            names[self.classes_at] = "most frequent classes"
        elif self.classes:
            names[self.classes_at] = f"classes, 0 to {most:.0%}"
        for place, name in names.items():
            page.text(x + place, y, name, 6, color=FAINT)

    def _row(self, page: Page, x: int, y: int, row: int, shares: NDArray[np.float64]) -> None:
        """One token: its colour in the maps, id and share of use, centre, patches, classes."""
        gallery = self.gallery
        token = int(gallery.shown[row])
        height = self.row_height - 14
        page.box(x, y, 12, height, token_colors([token])[0] / 255)
        page.text(x + 22, y + height // 2 - 22, str(token), weight="bold")
        page.text(x + 22, y + height // 2 + 4, percent(gallery.counts[token] / gallery.counts.sum()), 6, color=FAINT)
        page.picture(x + GUTTER, y, self._patch(gallery.centers[row]))
        gap = ((0, 0), (0, GAP), (0, 0))
        strip = [np.pad(self._patch(p), gap, constant_values=255) for p in gallery.patches[row, : gallery.filled[row]]]
        page.picture(x + self.patches_at, y, np.concatenate(strip, axis=1))
        if self.classes > FEW_CLASSES:
            self._top_classes(page, x + self.classes_at, y, shares[row], float(shares.max()))
        elif self.classes:
            self._bars(page, x + self.classes_at, y, shares[row] / float(shares.max()))

    def _patch(self, patch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return draw_size(to_rgb(patch), (self.cell, self.cell))

    def _bars(self, page: Page, x: int, y: int, heights: NDArray[np.float64]) -> None:
        """A bar for each class, on a scale that all rows share."""
        full = self.row_height - 14
        for place, (height, color) in enumerate(zip(heights, class_colors(self.classes), strict=True)):
            page.box(x + place * self.bar, y + full * (1 - height), self.bar - 2, full * height, color)
        page.box(x, y + full, self.bar * self.classes - 2, 2, FAINT)

    def _top_classes(self, page: Page, x: int, y: int, shares: NDArray[np.float64], most: float) -> None:
        """The most frequent classes by name, on bars that share a scale."""
        for place, label in enumerate(np.argsort(-shares, kind="stable")[:TOP_CLASSES]):
            if shares[label]:
                top = y + place * 17
                page.box(x, top, CLASSES * shares[label] / most, 16, "#cfe0f3")
                page.text(x + 2, top + 1, shorten(self.gallery.class_names[label], 160, 5), 5)
                page.text(x + CLASSES, top + 1, percent(shares[label]), 5, color=FAINT, align="right")


def percent(share: float) -> str:
    """A share with two digits that matter."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"
