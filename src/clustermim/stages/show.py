"""`clustermim show`: a picture of tokens."""

from __future__ import annotations

from pathlib import Path

from clustermim.data import open_source
from clustermim.drawing import tokens as drawing
from clustermim.drawing.gallery import GalleryOptions
from clustermim.drawing.page import check_out, save_figure, write_out
from clustermim.options import flat
from clustermim.progress import warn_skipped


@flat
def show(
    tokenizer: str,
    data: str,
    out: str,
    options: GalleryOptions = GalleryOptions(),
    overwrite: bool = False,
) -> None:
    """Draw what a tokenizer sees: its most used tokens with patches and classes, and token maps of some images.

    Args:
        tokenizer: the folder of a fitted tokenizer.
        data: where the images are; labels are shown when there are any.
        out: the picture to write, a .png, .pdf or .svg file.
        overwrite: replace an existing picture.
    """
    path = Path(out)
    check_out(path, (".png", ".pdf", ".svg"), overwrite)
    source = open_source(data)
    figure = drawing.show(tokenizer, source, options=options)
    write_out(path, lambda file: save_figure(figure, file, path.suffix[1:].lower()))
    warn_skipped(source.skipped)
    print(f"wrote a picture of tokens to {path}")
