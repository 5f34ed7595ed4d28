"""The stages that let people look instead of read: `clustermim show` and `clustermim report`."""

from __future__ import annotations

import warnings
from pathlib import Path

from clustermim.data import open_source
from clustermim.drawing.gallery import collect_tokens
from clustermim.drawing.page import check_out, save_figure, write_out
from clustermim.drawing.tokens import draw_tokens
from clustermim.progress import log_info, warn_skipped
from clustermim.reports import page
from clustermim.tokenizers import load_tokenizer


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
    check_out(path, (".png", ".pdf", ".svg"), overwrite)
    loaded, source = load_tokenizer(tokenizer), open_source(data)
    gallery = collect_tokens(
        loaded, source, tokens=tokens, patches=patches, images=images, max_images=max_images, seed=seed
    )
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        figure = draw_tokens(loaded, source, gallery)
        write_out(path, lambda file: save_figure(figure, file, path.suffix[1:].lower()))
    if any("missing from font" in str(warning.message) for warning in reported):
        log_info(
            "warning: the font lacks some characters, drawn as boxes: name another as font.family in a matplotlibrc"
        )
    warn_skipped(source.skipped)
    print(f"wrote a picture of {len(gallery.shown)} tokens to {path}")


def report(
    folders: str | list[str],
    out: str,
    data: str | None = None,
    images: int = 512,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Write one page about many runs: tables, charts, reconstructions and an explorer of tokens.

    The page is one file that needs no network and no other file.

    Args:
        folders: run folders, or folders that hold them, such as that of a study.
        out: the page to write, an .html file.
        data: images on which to show tokens; by default those that each tokenizer was fitted on.
        images: how many of them to look at, drawn at random.
        seed: of the random choices.
        overwrite: replace an existing page.
    """
    written = page.report(folders, out, data=data, images=images, seed=seed, overwrite=overwrite)
    for note in written.left_out:
        log_info("warning: " + " ".join(f"left out: {note}".split()))
    runs = f"{page.count(written.tokenizers, 'tokenizer')} and {page.count(written.encoders, 'pretrained encoder')}"
    print(f"wrote a report of {runs} to {written.path} ({written.size / 1e6:.1f} MB)")
