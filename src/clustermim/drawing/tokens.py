"""A tokenizer as a picture: its most used tokens with patches and classes, and token maps of some images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Source, open_source
from clustermim.drawing.gallery import GalleryOptions, TokenGallery, collect_tokens
from clustermim.drawing.page import GUTTER, INK, Page, shorten, to_rgb
from clustermim.options import flat
from clustermim.tokenizers import KMeansTokenizer, Tokenizer, load_tokenizer

BESIDE, WIDE = 4, 24  # gaps between patches, between the parts of a row
CELL, LARGEST_CELL = 44, 64  # side of a patch on the page: a whole multiple of its pixels from CELL on
TOP_CLASSES, CLASSES = 3, 340  # named in each row, and their width


@flat
def show(
    tokenizer: Tokenizer | str | Path | Callable[[Tensor], Any],
    source: Source | str | Path,
    *,
    options: GalleryOptions = GalleryOptions(),
) -> Figure:
    """Draw the most used tokens of a tokenizer with their patches and classes, and token maps of some images.

    A notebook displays the figure; `figure.savefig` writes it.

    >>> import clustermim as cm
    >>> tokenizer = cm.RandomTokenizer(k=4, patch_size=4).fit("digits/train")
    >>> cm.show(tokenizer, "digits/test", max_images=50).savefig("tokens.png")

    Args:
        tokenizer: a fitted tokenizer, its folder, or a callable of your own from images to ids.
        source: the images; labels are shown when there are any.
    """
    loaded, opened = load_tokenizer(tokenizer), open_source(source)
    return draw_tokens(loaded, opened, collect_tokens(loaded, opened, options))


def draw_tokens(tokenizer: Tokenizer, source: Source, gallery: TokenGallery) -> Figure:
    """The picture: title, gallery of tokens, token maps, notes."""
    samples, side = gallery.samples, tokenizer.patch_size
    cell = min(-(-CELL // side) * side, LARGEST_CELL)
    patches_at = GUTTER + cell + 2 + WIDE
    classes_at = patches_at + int(gallery.filled.max()) * (cell + 2 + BESIDE) - BESIDE + WIDE
    width = classes_at - WIDE if gallery.class_counts is None else classes_at + CLASSES
    title = f"{tokenizer.kind} tokenizer: K = {tokenizer.vocab_size:,}, patches of {side}×{side} pixels"
    shown = f"   {gallery.images:,} of {len(source):,} images, {gallery.counts.sum():,} patches"
    page = Page(source, len(samples.images), f"{title}, {gallery.used:,} tokens used", shown, width)
    _draw_gallery(page, gallery, cell, patches_at, classes_at)
    rows = {"image": to_rgb(samples.images), "tokens": gallery.colors[samples.ids]}
    if samples.rebuilt is not None:
        rows["rebuilt"] = to_rgb(samples.rebuilt)
    page.images(rows, None if samples.labels is None else [gallery.class_names[label] for label in samples.labels])
    return page.finish(_notes(tokenizer, gallery))


def _draw_gallery(page: Page, gallery: TokenGallery, cell: int, patches_at: int, classes_at: int) -> None:
    """A row for each token: its colour in the maps, id and share of use, centre, patches, most frequent classes."""
    page.text(0, "token")
    page.text(GUTTER, "mean" if gallery.shows_means else "centre")
    page.text(patches_at, "nearest" if gallery.nearest else "random")
    page.text(classes_at, "" if gallery.class_counts is None else "most frequent classes")
    page.down(30)
    tall = max(cell + 2, 48)
    for row, token in enumerate(gallery.shown.tolist()):
        page.box(0, 12, tall, gallery.colors[token] / 255)
        page.text(22, str(token), 7, tall // 2 - 22, color=INK, weight="bold")
        page.text(22, percent(gallery.counts[token] / gallery.counts.sum()), below=tall // 2 + 4)
        page.strip(GUTTER, to_rgb(gallery.centers[row][None]), (cell, cell), BESIDE)
        page.strip(patches_at, to_rgb(gallery.patches[row, : gallery.filled[row]]), (cell, cell), BESIDE)
        if gallery.class_counts is not None:
            _draw_classes(page, classes_at, gallery.class_counts[token], gallery.class_names)
        page.down(tall + 14)
    page.down(20)


def _draw_classes(page: Page, x: int, counts: NDArray[np.int64], names: tuple[str, ...]) -> None:
    """The most frequent classes of a token by name, on bars as long as their share."""
    for top, label in enumerate(np.argsort(-counts, kind="stable")[:TOP_CLASSES]):
        if counts[label]:
            share = counts[label] / counts.sum()
            page.box(x, (CLASSES - 50) * share, 16, "#cfe0f3", 17 * top)
            page.text(x + 2, shorten(names[label], CLASSES - 50, 5), 5, 17 * top + 1, color=INK)
            page.text(x + CLASSES, percent(share), 5, 17 * top + 1, ha="right")


def _notes(tokenizer: Tokenizer, gallery: TokenGallery) -> list[str]:
    """What needs to be said of centres and patches."""
    notes = []
    if not gallery.has_centers:
        notes.append("This tokenizer has no centres: each token shows the mean of its patches and a random sample.")
    elif gallery.shows_means:
        notes.append("This tokenizer clusters no plain pixels: a token shows the mean of its patches, and the nearest.")
    elif not gallery.nearest:
        notes.append("This tokenizer looks beyond the pixels of a patch: the patches of a token are a random sample.")
    if isinstance(tokenizer, KMeansTokenizer) and tokenizer.space == "pixel-norm":
        notes.append(f"Centres of {tokenizer.space} patches have no brightness or contrast: drawn around mid-grey.")
    return notes


def percent(share: float) -> str:
    """A share with two digits that matter."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"
