"""The tokens of a source, batch by batch, and how much of a codebook occurs in them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from clustermim.data.remembered import Numbers, remembered
from clustermim.data.source import Batch, Source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.patches import grid_size
from clustermim.progress import log_info, track
from clustermim.teachers.base import device_of
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.modules import ModuleTokenizer

MEASURED = 10_000  # images at most that a codebook is measured on
FEW = 0.2  # share of tokens in use below which a codebook has collapsed


def ids_of(tokenizer: Tokenizer, images: Tensor, labels: Tensor | None) -> Tensor:
    """Ids (B, N) of images (B, C, H, W) on the CPU, wherever the tokenizer is; labels (B,) only for an oracle."""
    device = device_of(tokenizer)
    known = labels.to(device=device) if tokenizer.needs_labels and labels is not None else None
    return tokenizer(images.to(device=device), known).cpu()  # type: ignore[no-any-return]


def remember_ids(tokenizer: Tokenizer, source: Source, *what: str) -> AbstractContextManager[Numbers]:
    """Ids of a tokenizer while they are computed: what a kill interrupts goes on from what was kept.

    A user's own code may depend on what we cannot see, so its ids are computed each time.
    """
    if isinstance(tokenizer, ModuleTokenizer):
        return nullcontext(lambda _, compute: compute())
    return remembered(source, *what, tokenizer.version(), json.dumps(tokenizer.config(), sort_keys=True, default=str))


def all_ids(tokenizer: Tokenizer, source: Source, batch_size: int = 256) -> Tensor:
    """Ids (images, N) of all images, int32, −1 of those that cannot be read; the ranks share them out."""
    if tokenizer.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and a {tokenizer.kind} tokenizer needs them")
    rows, columns = grid_size(*source.shape[1:], tokenizer.patch_size)
    found = torch.zeros(len(source), rows * columns, dtype=torch.int32)  # ids + 1, which ranks can add up
    batches = source.batches(batch_size, rank=rank(), world_size=world_size())
    with remember_ids(tokenizer, source) as known:
        for batch in track(batches, "tokenizing", total=-(-len(source) // (batch_size * world_size()))):
            compute = partial(ids_of, tokenizer, to_float(batch.images), batch.labels)
            found[batch.indices] = known(batch.indices, compute).int() + 1
    return all_reduce_sum(found) - 1


def tokenize(
    tokenizer: Tokenizer, source: Source, batch_size: int = 256, *, seed: int | None = None, limit: int | None = None
) -> Iterator[tuple[Batch, Tensor]]:
    """Batches of a source with the ids (B, N) of their patches; this rank's share on several.

    All images in order, or shuffled when a seed is given; at most `limit` of them, equally many on every
    rank. Ids and batches are on the CPU, wherever the tokenizer is.
    """
    if tokenizer.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and a {tokenizer.kind} tokenizer needs them")
    left = -(-(len(source) if limit is None else min(limit, len(source))) // world_size())
    steps = -(-left // batch_size)
    batches = source.batches(batch_size, seed=seed, rank=rank(), world_size=world_size())
    for batch in track(batches, "tokenizing", total=steps):
        some = batch.first(left)
        yield some, ids_of(tokenizer, to_float(some.images), some.labels)
        left -= len(some.images)
        if left <= 0:
            return


def use_of(counts: Tensor, images: int) -> dict[str, float]:
    """The use of a codebook from how often each token (K,) occurs in so many images; perplexity is exp(−Σ p ln p)."""
    found = counts.double().numpy()
    shares = found[found > 0] / found.sum()
    return {
        "vocab_size": len(counts),
        "usage": float(np.mean(found > 0)),
        "perplexity": float(np.exp(-float(np.sum(shares * np.log(shares))))),
        "measured_images": images,
        "measured_patches": int(counts.sum()),
    }


@torch.no_grad()
def measure_use(
    tokenizer: Tokenizer, source: Source, limit: int = MEASURED, seed: int = 0, batch_size: int = 256
) -> dict[str, float]:
    """The use of a tokenizer's codebook in at most `limit` images of a source, drawn at random; PSNR if it decodes."""
    counts = torch.zeros(tokenizer.vocab_size, dtype=torch.int64)
    sums = torch.zeros(3, dtype=torch.float64)  # squared error, numbers compared, images
    decode = getattr(tokenizer, "decode", None)
    for batch, ids in tokenize(tokenizer, source, batch_size, seed=seed, limit=limit):
        counts += torch.bincount(ids.flatten(), minlength=len(counts))
        sums += torch.tensor([0, batch.images.numel(), len(ids)])
        if decode is not None:
            grid = grid_size(*source.shape[1:], tokenizer.patch_size)
            rebuilt = decode(ids.reshape(-1, *grid).to(device=device_of(tokenizer))).cpu()
            sums[0] += (rebuilt - to_float(batch.images)).square().double().sum()
    counts, sums = all_reduce_sum(counts), all_reduce_sum(sums)
    error = max(float(sums[0] / sums[1]), 1e-12)
    return use_of(counts, int(sums[2])) | ({} if decode is None else {"psnr": -10 * math.log10(error)})


def warn_unused(use: Mapping[str, float], remedy: str) -> None:
    """Say that most of a codebook is not in use, and what to try."""
    used = round(use["usage"] * use["vocab_size"])
    if used < FEW * min(use["vocab_size"], use["measured_patches"]):  # few patches cannot use many tokens
        log_info(
            f"warning: only {used:,} of the {use['vocab_size']:,} tokens occur in {use['measured_images']:,} images: "
            f"try {remedy}"
        )
