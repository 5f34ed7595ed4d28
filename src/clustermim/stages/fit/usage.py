"""How much of a codebook occurs in images, and a warning where it is little."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from clustermim.data import Source
from clustermim.distributed import all_reduce_sum
from clustermim.progress import log_info
from clustermim.scores.codebook import perplexity, usage
from clustermim.tokenizers import Tokenizer, tokenize

MEASURED = 10_000  # images at most that a codebook is measured on
FEW = 0.2  # share of tokens in use below which a codebook has collapsed


def use_of(counts: Tensor, images: int) -> dict[str, float]:
    """The use of a codebook from how often each token (K,) occurs in so many images."""
    return {
        "vocab_size": len(counts),
        "usage": usage(counts),
        "perplexity": perplexity(counts),
        "measured_images": images,
        "measured_patches": int(counts.sum()),
    }


def measure_use(
    tokenizer: Tokenizer, source: Source, limit: int = MEASURED, seed: int = 0, batch_size: int = 256
) -> dict[str, float]:
    """The use of a tokenizer's codebook in at most `limit` images of a source, drawn at random."""
    counts, images = torch.zeros(tokenizer.vocab_size, dtype=torch.int64), torch.tensor(0)
    for _, ids in tokenize(tokenizer, source, batch_size, seed=seed, limit=limit):
        counts += torch.bincount(ids.flatten(), minlength=len(counts))
        images += len(ids)
    return use_of(all_reduce_sum(counts), int(all_reduce_sum(images)))


def warn_unused(use: Mapping[str, float], remedy: str) -> None:
    """Say that most of a codebook is not in use, and what to try."""
    used = round(use["usage"] * use["vocab_size"])
    if used < FEW * min(use["vocab_size"], use["measured_patches"]):  # few patches cannot use many tokens
        log_info(
            f"warning: only {used:,} of the {use['vocab_size']:,} tokens occur in {use['measured_images']:,} images: "
            f"try {remedy}"
        )
