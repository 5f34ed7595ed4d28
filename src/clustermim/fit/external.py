"""`clustermim fit external`: a published tokenizer, copied into a folder of its own and tried on the data."""

from __future__ import annotations

from typing import Any

import torch

from clustermim.data import Source
from clustermim.distributed import all_sum, world
from clustermim.errors import ConfigError
from clustermim.fit.folder import fit_into
from clustermim.metrics import perplexity, usage
from clustermim.progress import say
from clustermim.runs import Run
from clustermim.tokenizers import ExternalTokenizer, tokenize

BATCH = 32  # images; some networks take gigabytes for more
LOW_USAGE = 0.2


def fit_external(
    data: str,
    out: str,
    source: str,
    patch_size: int = 16,
    max_images: int = 2000,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Take a published tokenizer: its weights are copied, and its use of the codebook is measured on the data.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        source: `hf-flava:NAME` (the dVAE of DALL·E) or `diffusers-vq:NAME` (a VQGAN): a name of the hub or a folder.
        patch_size: side of a patch in pixels; images are resized so that each patch gets one id.
        max_images: images to measure usage and perplexity on, drawn at random.
        seed: of that choice.
        overwrite: replace a complete run in `out`.
    """
    if max_images < 1:
        raise ConfigError(f"--max-images {max_images} is too small: 1 at least")
    tokenizer = ExternalTokenizer(source, patch_size)

    def fit(images: Source, run: Run) -> dict[str, Any]:
        return measure_use(tokenizer.fit(images), images, max_images, seed)

    fit_into(tokenizer, fit, data, out, overwrite)


def measure_use(tokenizer: ExternalTokenizer, source: Source, max_images: int, seed: int) -> dict[str, Any]:
    """How much of the codebook occurs in some images of a source, with a warning where it is little."""
    counts = torch.zeros(tokenizer.vocab_size, dtype=torch.long)
    images = torch.tensor(0)
    for _, ids in tokenize(tokenizer, source, BATCH, seed=seed, limit=-(-max_images // world())):
        counts += torch.bincount(ids.flatten(), minlength=tokenizer.vocab_size)
        images += len(ids)
    counts, images = all_sum(counts), all_sum(images)
    used, patches = int((counts > 0).sum()), int(counts.sum())
    if used < LOW_USAGE * min(tokenizer.vocab_size, patches):  # few patches cannot use many tokens
        say(
            f"warning: {used:,} of {tokenizer.vocab_size:,} tokens occur in {int(images):,} images of {source.spec}: "
            f"try images like those the tokenizer was trained on, larger ones, or a larger --patch-size"
        )
    return {
        "vocab_size": tokenizer.vocab_size,
        "usage": usage(counts),
        "perplexity": perplexity(counts),
        "images": int(images),
    }
