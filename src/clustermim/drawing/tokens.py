"""A tokenizer as a picture: its most used tokens with patches and classes, and token maps of some images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clustermim.data import Source, open_source
from clustermim.drawing.bands import GAP, LARGEST, Rows, draw_band, strip
from clustermim.drawing.colors import FEW_CLASSES, class_colors, token_colors
from clustermim.drawing.gallery import TokenGallery, collect_tokens
from clustermim.drawing.page import FAINT, MARGIN, Page, channel_note, shorten, text_width, to_rgb
from clustermim.tokenizers import KMeansTokenizer, Tokenizer, load_tokenizer

GUTTER = 112  # colour, id and share of a token; the names of the rows of the maps
BESIDE, WIDE, BETWEEN = 4, 24, 72  # gaps between patches, between the parts of a row, between columns of rows
CELL, LARGEST_CELL = 44, 64  # side of a patch on the page: a whole multiple of its pixels from CELL on
SMALLEST = 160  # longer side of an image on the page
TARGET = 2250  # width of the page, about
TOP_CLASSES = 3  # named in each row when there are too many for colours
CLASSES = 210  # width of the classes of a token
HEADER = 30


def show(
    tokenizer: Tokenizer | str | Path,
    source: Source | str | Path,
    *,
    tokens: int = 24,
    patches: int = 12,
    images: int = 6,
    max_images: int = 2000,
    seed: int = 0,
) -> Figure:
    """Draw the most used tokens of a tokenizer with their patches and classes, and token maps of some images.

    It looks at `max_images` random images. Of a k-means tokenizer it shows the patches nearest to each centre, of
    another a random sample. A notebook displays the figure; `figure.savefig` writes it.

    >>> import clustermim as cm
    >>> tokenizer = cm.RandomTokenizer(k=4, patch_size=4).fit("digits/train")
    >>> cm.show(tokenizer, "digits/test", max_images=50).savefig("tokens.png")
    """
    loaded, opened = load_tokenizer(tokenizer), open_source(source)
    sizes = {"tokens": tokens, "patches": patches, "images": images, "max_images": max_images}
    return draw_tokens(loaded, opened, collect_tokens(loaded, opened, **sizes, seed=seed))


def draw_tokens(tokenizer: Tokenizer, source: Source, gallery: TokenGallery) -> Figure:
    """The picture: title, gallery of tokens, token maps, notes."""
    tiles, side = _Tiles(gallery), tokenizer.patch_size
    title = f"{tokenizer.kind} tokenizer: K = {tokenizer.vocab_size:,}, patches of {side}×{side} pixels"
    seen = f"   {gallery.images:,} of {len(source):,} images, {gallery.counts.sum():,} patches"
    page = Page(tiles.width, tiles.height, f"{title}, {gallery.used:,} tokens used", source.spec, seen)
    y = _draw_maps(page, gallery, tiles.draw(page, page.top) + 20)
    notes = []
    if not gallery.has_centers:
        notes.append("This tokenizer has no centres: each token shows the mean of its patches and a random sample.")
    elif gallery.shows_means:
        notes.append("This tokenizer clusters features: a token shows the mean of its patches, and the nearest.")
    elif not gallery.nearest:
        notes.append("This tokenizer looks beyond the pixels of a patch: the patches of a token are a random sample.")
    if isinstance(tokenizer, KMeansTokenizer) and tokenizer.space == "pixel-norm":
        notes.append(f"Centres of {tokenizer.space} patches have no brightness or contrast: drawn around mid-grey.")
    return page.finish(y, [*notes, channel_note(source.shape[0])])


def _draw_maps(page: Page, gallery: TokenGallery, y: int) -> int:
    """Sample images, their tokens in colour, and the images rebuilt from centres, in as many bands as they need."""
    samples = gallery.samples
    count, _, height, width = samples.images.shape
    room = page.room - GUTTER + GAP
    scale = max(SMALLEST, min(LARGEST, room // max(count, 1) - GAP - 2)) / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    step = max(size[1] + 2, SMALLEST) + GAP
    rows: Rows = {"image": to_rgb(samples.images), "tokens": token_colors(samples.ids)}
    if samples.rebuilt is not None:
        rows["rebuilt"] = to_rgb(samples.rebuilt)
    names = None if samples.labels is None else [gallery.class_names[label] for label in samples.labels]
    in_band = max(1, room // step)
    for start in range(0, count, in_band):
        band = slice(start, start + in_band)
        shown = {name: pictures[band] for name, pictures in rows.items()}
        y = draw_band(page, shown, names and names[band], size, y, GUTTER, step) + GAP
    return y


class _Tiles:
    """The gallery, a row for each token with its centre, its patches and its classes: where everything goes."""

    def __init__(self, gallery: TokenGallery) -> None:
        self.gallery = gallery
        side, rows = int(gallery.patches.shape[-1]), len(gallery.shown)
        self.cell = min(-(-CELL // side) * side, LARGEST_CELL)
        step = self.cell + 2 + BESIDE
        self.patches_at = GUTTER + step + WIDE
        self.classes_at = self.patches_at + int(gallery.filled.max()) * step - BESIDE + WIDE
        self.row_width, self.classes = self.classes_at - WIDE, 0
        if gallery.class_counts is not None:
            counts = gallery.class_counts[gallery.shown]
            self.row_width, self.classes = self.classes_at + CLASSES, len(gallery.class_names)
            self.shares = counts / counts.sum(1, keepdims=True)  # (T, classes)
        self.tall = max(self.cell + 2, 48)
        self.row_height = self.tall + 14
        self.columns = max(1, min((TARGET + BETWEEN) // (self.row_width + BETWEEN), -(-rows // 4)))
        self.rows = -(-rows // self.columns)
        self.width = self.columns * (self.row_width + BETWEEN) - BETWEEN
        self.height = HEADER + self.rows * self.row_height  # the legend aside

    def draw(self, page: Page, y: int) -> int:
        """Draw the gallery, and give the y below it."""
        names = {0: "token", GUTTER: "mean" if self.gallery.shows_means else "centre"}
        names[self.patches_at] = "nearest" if self.gallery.nearest else "random"
        if self.classes > FEW_CLASSES:
            names[self.classes_at] = "most frequent classes"
        elif self.classes:
            names[self.classes_at] = f"classes, 0 to {self.shares.max():.0%}"
            y = self._legend(page, y)
        for row in range(len(self.gallery.shown)):
            column, place = divmod(row, self.rows)
            x = MARGIN + column * (self.row_width + BETWEEN)
            self._row(page, x, y + HEADER + place * self.row_height, row)
            for offset, name in names.items() if place == 0 else ():
                page.text(x + offset, y, name, 6, color=FAINT)
        return y + self.height

    def _legend(self, page: Page, y: int) -> int:
        """The names of the classes beside their colours, in as many lines as they need."""
        x = MARGIN
        for name, color in zip(self.gallery.class_names, class_colors(self.classes), strict=True):
            name = shorten(name, 360)
            needed = 24 + text_width(name)
            if x > MARGIN and x + needed > page.width - MARGIN:
                x, y = MARGIN, y + 28
            page.box(x, y + 2, 16, 16, color)
            page.text(x + 24, y, name)
            x += needed + 32
        return y + 40

    def _row(self, page: Page, x: int, y: int, row: int) -> None:
        """One token: its colour in the maps, id and share of use, centre, patches, classes."""
        gallery, cells = self.gallery, (self.cell, self.cell)
        token = int(gallery.shown[row])
        page.box(x, y, 12, self.tall, token_colors([token])[0] / 255)
        page.text(x + 22, y + self.tall // 2 - 22, str(token), weight="bold")
        share = percent(gallery.counts[token] / gallery.counts.sum())
        page.text(x + 22, y + self.tall // 2 + 4, share, 6, color=FAINT)
        page.picture(x + GUTTER, y, strip(to_rgb(gallery.centers[row][None]), cells, BESIDE))
        patches = gallery.patches[row, : gallery.filled[row]]
        page.picture(x + self.patches_at, y, strip(to_rgb(patches), cells, BESIDE))
        if self.classes > FEW_CLASSES:
            self._top_classes(page, x + self.classes_at, y, self.shares[row])
        elif self.classes:
            self._bars(page, x + self.classes_at, y, self.shares[row])

    def _bars(self, page: Page, x: int, y: int, shares: NDArray[np.float64]) -> None:
        """A bar for each class, on a scale that all rows share."""
        step = min(40, CLASSES // self.classes)
        heights = self.tall * shares / self.shares.max()
        for place, (height, color) in enumerate(zip(heights, class_colors(self.classes), strict=True)):
            page.box(x + place * step, y + self.tall - height, step - 2, height, color)
        page.box(x, y + self.tall, step * self.classes - 2, 2, FAINT)

    def _top_classes(self, page: Page, x: int, y: int, shares: NDArray[np.float64]) -> None:
        """The most frequent classes by name, on bars that share a scale."""
        for top, label in enumerate(np.argsort(-shares, kind="stable")[:TOP_CLASSES]):
            if shares[label]:
                page.box(x, y + 17 * top, CLASSES * shares[label] / self.shares.max(), 16, "#cfe0f3")
                page.text(x + 2, y + 17 * top + 1, shorten(self.gallery.class_names[label], 160, 5), 5)
                page.text(x + CLASSES, y + 17 * top + 1, percent(shares[label]), 5, color=FAINT, ha="right")


def percent(share: float) -> str:
    """A share with two digits that matter."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"
