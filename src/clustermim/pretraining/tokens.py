"""Tokens of all images, computed once before the training: for tokenizers that are slower than the model."""

from __future__ import annotations

import torch
from torch import Tensor

from clustermim.data import Source
from clustermim.data.augment import Augment
from clustermim.distributed import all_reduce_sum
from clustermim.errors import ConfigError
from clustermim.patches import grid_size
from clustermim.targets import Target, TokenTarget
from clustermim.tokenizers import tokenize


def check_cache_tokens(target: Target, augment: Augment) -> None:
    """Refuse what has no tokens, or has others in every view."""
    if not isinstance(target, TokenTarget):
        raise ConfigError(f"--cache-tokens is for --target tokens, not {target.kind}")
    if augment != "none":
        raise ConfigError(f"--cache-tokens needs --augment none: under {augment} every view has tokens of its own")


def all_tokens(target: Target, source: Source) -> Tensor:
    """Tokens (images, N), int32, of the images as they are; each rank computes its share. Zeros for unreadable ones."""
    assert isinstance(target, TokenTarget)  # as checked
    rows, columns = grid_size(*source.shape[1:], target.patch_size)
    tokens = torch.zeros(len(source), rows * columns, dtype=torch.int32)
    for batch, ids in tokenize(target.tokenizer, source):
        tokens[batch.indices] = ids.int()
    return all_reduce_sum(tokens)
