"""What a learned tokenizer keeps of a few images, as a picture: `reconstructions.png` in its run folder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from clustermim.data import Source, to_float
from clustermim.drawing.bands import Rows, draw_rows, enlarge, page_size, rgb_of
from clustermim.drawing.colors import token_colors
from clustermim.drawing.page import PICTURE, channel_note, to_png, write_out
from clustermim.patches import grid_size
from clustermim.progress import log_info
from clustermim.runs import Run
from clustermim.tokenizers.learned import LearnedTokenizer

IMAGES = 8


def write_reconstructions(run: Run, tokenizer: LearnedTokenizer, source: Source, found: Mapping[str, float]) -> None:
    """Draw images above their reconstructions and tokens, and write the picture into a run folder."""
    positions = np.linspace(0, len(source) - 1, min(IMAGES, len(source))).astype(np.int64)
    images = to_float(source.read(positions).images)  # (M, C, H, W)
    if not len(images):
        log_info(f"none of the {IMAGES} images for {PICTURE} can be read: it is left out")
        return
    title = (
        f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens: PSNR {found['psnr']:.2f} dB, "
        f"{found['usage']:.1%} of tokens in use, perplexity {found['perplexity']:,.1f}"
    )
    shown = f"   {len(images)} of {len(source):,} images, patches of {tokenizer.patch_size} pixels"
    rows, size = rows_of(tokenizer, images), page_size(*source.shape[1:])
    figure = draw_rows((title, source.spec, shown), rows, size, None, channel_note(source.shape[0]))
    write_out(run.folder / PICTURE, to_png(figure), "the tokenizer is there, and --resume completes the run")


def rows_of(tokenizer: LearnedTokenizer, images: Tensor) -> Rows:
    """The rows of the picture by name."""
    device = tokenizer.autoencoder.mean.device
    grid = grid_size(images.shape[2], images.shape[3], tokenizer.patch_size)
    ids = tokenizer(images.to(device)).reshape(-1, *grid)  # (M, rows, columns)
    return {
        "image": rgb_of(images),
        "reconstruction": rgb_of(tokenizer.decode(ids)),
        "tokens": enlarge(token_colors(ids.cpu().numpy()), tokenizer.patch_size),
    }
