"""What a learned tokenizer keeps of a few images, as a picture: `reconstructions.png` in its run folder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Source, to_float
from clustermim.drawing.bands import GAP, Rows, draw_band
from clustermim.drawing.cells import enlarge
from clustermim.drawing.colors import token_colors
from clustermim.drawing.page import FAINT, Page, channel_note, shorten, text_width, to_png, to_rgb
from clustermim.errors import RunError
from clustermim.files import write_atomic
from clustermim.patches import grid_size
from clustermim.progress import say
from clustermim.runs import Run
from clustermim.tokenizers.learned import LearnedTokenizer

PICTURE = "reconstructions.png"
IMAGES = 8
SIDE, LARGEST = 192, 340  # longer side of an image on the page: about SIDE for a small one, LARGEST at most
MARGIN, NARROWEST = 50, 1100  # the title needs as much


def write_reconstructions(run: Run, tokenizer: LearnedTokenizer, source: Source, found: Mapping[str, float]) -> None:
    """Draw images above their reconstructions and tokens, and write the picture into a run folder."""
    positions = np.linspace(0, len(source) - 1, min(IMAGES, len(source))).astype(np.int64)
    images = to_float(source.read(positions).images)  # (M, C, H, W)
    if not len(images):
        say(f"none of the {IMAGES} images for {PICTURE} can be read: it is left out")
        return
    title = (
        f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens: PSNR {found['psnr']:.2f} dB, "
        f"{found['usage']:.1%} of tokens in use, perplexity {found['perplexity']:,.1f}"
    )
    path = run.folder / PICTURE
    try:
        write_atomic(path, draw(tokenizer, source, images, title))
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        raise RunError(f"{problem}; the tokenizer is there, and --resume completes the run") from error


def draw(tokenizer: LearnedTokenizer, source: Source, images: Tensor, title: str) -> bytes:
    """The picture as a PNG: title, a column for each image (M, C, H, W)."""
    height, width = images.shape[2:]
    larger, smaller = max(1, round(SIDE / max(height, width))), -(-max(height, width) // LARGEST)
    size = (max(1, height * larger // smaller), max(1, width * larger // smaller))
    rows = rows_of(tokenizer, images)
    gutter = max(text_width(name, 6) for name in rows) + GAP
    step = max(size[1] + 2, SIDE // 2) + GAP
    page = Page(max(NARROWEST, gutter + len(images) * step - GAP) + 2 * MARGIN, len(rows) * size[0])
    room = page.width - 2 * MARGIN
    page.text(MARGIN, MARGIN, shorten(title, room, 10, "bold"), 10, weight="bold")
    shown = f"   {len(images)} of {len(source):,} images, patches of {tokenizer.patch_size} pixels"
    page.text(MARGIN, MARGIN + 40, shorten(source.spec, room - text_width(shown, 8), 8) + shown, 8, color=FAINT)
    y = draw_band(page, rows, None, size, (MARGIN, MARGIN + 96), gutter, step) + GAP
    note = channel_note(source.shape[0])
    if note:
        page.text(MARGIN, y, note, 6, color=FAINT)
        y += 24
    return to_png(page.finish(y + MARGIN // 2))


def rows_of(tokenizer: LearnedTokenizer, images: Tensor) -> Rows:
    """The rows of the picture by name."""
    device = tokenizer.autoencoder.mean.device
    grid = grid_size(images.shape[2], images.shape[3], tokenizer.patch_size)
    ids = tokenizer(images.to(device)).reshape(-1, *grid)  # (M, rows, columns)
    return {
        "image": _rgb(images),
        "reconstruction": _rgb(tokenizer.decode(ids)),
        "tokens": enlarge(token_colors(ids.cpu().numpy()), tokenizer.patch_size),
    }


def _rgb(images: Tensor) -> NDArray[np.uint8]:
    """Images (M, C, H, W) in [0, 1] to (M, H, W, 3)."""
    return to_rgb(images.mul(255).round().to(torch.uint8).cpu().numpy())
