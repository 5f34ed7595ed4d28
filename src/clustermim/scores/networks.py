"""What networks make of tokens: how well they draw the image again, and what an untrained encoder reads in them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from clustermim.count_tables import Floats
from clustermim.data import to_float
from clustermim.errors import DataError
from clustermim.models.vit import TokenViT
from clustermim.patches import unpatchify
from clustermim.scores.collect import BATCH, Tokens, renumber
from clustermim.scores.ranks import centre
from clustermim.teachers.base import device_of

DRAWN = 512  # images that are drawn again
READER = "micro"


def draw(tokens: Tokens, ids: Tensor) -> Tensor:
    """Images (B, C, H, W) of ids (B, N): decoded, or put together of the pictures of their tokens."""
    decode = getattr(tokens.tokenizer, "decode", None)
    if decode is not None:
        found: Tensor = decode(ids.reshape(-1, *tokens.grid).to(device_of(tokens.tokenizer))).cpu()
        return found
    pictures = tokens.tokenizer.center_patches()  # (l, C, p, p)
    if pictures is None:
        raise DataError(f"a {tokens.tokenizer.kind} tokenizer has no pictures of its tokens")
    return unpatchify(pictures.cpu().permute(0, 2, 3, 1).flatten(1)[ids], tokens.grid, pictures.shape[1])


@torch.no_grad()
def psnr(tokens: Tokens) -> float:
    """Peak signal-to-noise ratio of images drawn from their tokens, in decibels, of the first sampled images."""
    ids, where = (part[:DRAWN] for part in tokens.sample)
    order = where.argsort()
    batch = tokens.source.read(where[order].numpy())
    kept = torch.isin(where[order], batch.indices)
    error = (draw(tokens, ids[order][kept]) - to_float(batch.images)).double().square().mean()
    return -10 * math.log10(max(float(error), 1e-12))


@torch.no_grad()
def untrained_features(tokens: Tokens) -> Floats:
    """Means over patches of what an untrained encoder makes of the sampled images' tokens, along principal axes."""
    found = tokens.sample[0].numpy()
    places, size = renumber(found, np.bincount(found.ravel(), minlength=tokens.vocab_size))
    sides = (tokens.grid[0] * tokens.tokenizer.patch_size, tokens.grid[1] * tokens.tokenizer.patch_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reader = TokenViT.of_size(f"{size}:{READER}", sides, tokens.tokenizer.patch_size).eval()
    read = [reader(ids)[:, 1:].mean(1) for ids in torch.split(torch.from_numpy(places).long(), BATCH)]
    return centre(torch.cat(read).numpy().astype(np.float64))
