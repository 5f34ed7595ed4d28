"""The stage that draws a tokenizer: `clustermim show`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

from matplotlib import rc_context
from matplotlib.figure import Figure

from clustermim.data import Source, open_source
from clustermim.drawing.bands import MARGIN, NARROWEST
from clustermim.drawing.gallery import TokenGallery, collect_tokens
from clustermim.drawing.maps import draw_maps
from clustermim.drawing.output import check_out, write_out
from clustermim.drawing.page import DPI, FAINT, Page, channel_note, shorten, text_width, wrap
from clustermim.drawing.tiles import Tiles
from clustermim.progress import log_info, warn_skipped
from clustermim.tokenizers import KMeansTokenizer, Tokenizer, load_tokenizer

# What is written into a file of each kind; no date, so that the same picture has the same bytes.
METADATA: dict[str, dict[str, None]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def show(
    tokenizer: str,
    data: str,
    out: str,
    tokens: int = 24,
    patches: int = 12,
    images: int = 6,
    max_images: int = 2000,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Draw what a tokenizer sees: its most used tokens with patches and classes, and token maps of some images.

    Args:
        tokenizer: the folder of a fitted tokenizer.
        data: where the images are; labels are shown when there are any.
        out: the picture to write, a .png, .pdf or .svg file.
        tokens: how many of the most used tokens to show.
        patches: patches of each token: of k-means those nearest to its centre, of others a random sample.
        images: images to show with their token maps.
        max_images: images to look at, drawn at random.
        seed: of the random choices.
        overwrite: replace an existing picture.
    """
    path = Path(out)
    check_out(path, METADATA, overwrite)
    loaded, source = load_tokenizer(tokenizer), open_source(data)
    gallery = collect_tokens(
        loaded, source, tokens=tokens, patches=patches, images=images, max_images=max_images, seed=seed
    )
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        figure = draw_tokens(loaded, source, gallery)
        _write(figure, path)
    if any("missing from font" in str(warning.message) for warning in reported):
        log_info(
            "warning: the font lacks some characters, drawn as boxes: name another as font.family in a matplotlibrc"
        )
    warn_skipped(source.skipped)
    print(f"wrote a picture of {len(gallery.shown)} tokens to {path}")


def draw_tokens(tokenizer: Tokenizer, source: Source, gallery: TokenGallery) -> Figure:
    """The picture: title, gallery of tokens, token maps, notes."""
    tiles = Tiles(gallery)
    page = Page(max(NARROWEST, tiles.width) + 2 * MARGIN, tiles.height)
    room = page.width - 2 * MARGIN
    side = tokenizer.patch_size
    title = f"{tokenizer.kind} tokenizer: K = {tokenizer.vocab_size:,}, patches of {side}×{side} pixels"
    title += f", {gallery.used:,} tokens used"
    page.text(MARGIN, MARGIN, shorten(title, room, 10, "bold"), 10, weight="bold")
    seen = f"   {gallery.images:,} of {len(source):,} images, {gallery.counts.sum():,} patches"
    spec = shorten(source.spec, room - text_width(seen, 8), 8)
    page.text(MARGIN, MARGIN + 40, spec + seen, 8, color=FAINT)
    y = tiles.draw(page, MARGIN, MARGIN + 96)
    y = draw_maps(page, gallery, MARGIN, y + 20)
    for note in _notes(tokenizer, source, gallery):
        for line in wrap(note, room, 6):
            page.text(MARGIN, y, line, 6, color=FAINT)
            y += 24
    return page.finish(y + MARGIN // 2)


def _notes(tokenizer: Tokenizer, source: Source, gallery: TokenGallery) -> list[str]:
    """What the reader cannot see from the picture."""
    notes = []
    if not gallery.has_centers:
        notes.append("This tokenizer has no centres: each token shows the mean of its patches and a random sample.")
    elif gallery.shows_means:
        notes.append("This tokenizer clusters features: a token shows the mean of its patches, and the nearest.")
    elif not gallery.nearest:
        notes.append("This tokenizer looks beyond the pixels of a patch: the patches of a token are a random sample.")
    if isinstance(tokenizer, KMeansTokenizer) and tokenizer.space == "pixel-norm":
        notes.append(f"Centres of {tokenizer.space} patches have no brightness or contrast: drawn around mid-grey.")
    about_channels = channel_note(source.shape[0])
    return notes if about_channels is None else [*notes, about_channels]


def _write(figure: Figure, path: Path) -> None:
    """Write the picture, whole or not at all."""
    suffix = path.suffix.lower()

    def save(file: BinaryIO) -> None:
        # The user's own settings must not crop the page; the salt makes names inside an .svg the same each time.
        with rc_context({"savefig.bbox": "standard", "svg.hashsalt": "clustermim"}):
            figure.savefig(file, format=suffix[1:], dpi=DPI, metadata=METADATA[suffix])

    write_out(path, save)
