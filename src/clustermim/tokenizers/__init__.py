"""Tokenizers: images to ids. A new one is one file and one entry in `TOKENIZERS`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from clustermim.data.source import Batch, Source, to_float
from clustermim.distributed import rank, world_size
from clustermim.errors import DataError, TokenizerError
from clustermim.files import user_path
from clustermim.progress import track
from clustermim.teachers.base import device_of
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.external import ExternalTokenizer
from clustermim.tokenizers.kmeans import KMeansTokenizer
from clustermim.tokenizers.learned import LearnedTokenizer, RandomProjectionTokenizer
from clustermim.tokenizers.modules import ModuleTokenizer, is_module, open_module_tokenizer
from clustermim.tokenizers.prototypes import PrototypeTokenizer
from clustermim.tokenizers.quantizers import QUANTIZERS
from clustermim.tokenizers.reference import LabelTokenizer, RandomTokenizer
from clustermim.tokenizers.storage import load_saved

__all__ = [
    "TOKENIZERS",
    "ExternalTokenizer",
    "KMeansTokenizer",
    "LabelTokenizer",
    "LearnedTokenizer",
    "ModuleTokenizer",
    "PrototypeTokenizer",
    "RandomProjectionTokenizer",
    "RandomTokenizer",
    "Tokenizer",
    "ids_of",
    "load_tokenizer",
    "tokenize",
]

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "kmeans": KMeansTokenizer,
    "random": RandomTokenizer,
    "labels": LabelTokenizer,
    **dict.fromkeys(QUANTIZERS, LearnedTokenizer),
    "random-projection": RandomProjectionTokenizer,
    "external": ExternalTokenizer,
    "toy": PrototypeTokenizer,
}


def load_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    """The fitted tokenizer that a folder holds, or that `module:package.module:factory` makes; one is kept as it is."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not isinstance(tokenizer, str | Path):
        raise TokenizerError(f"a tokenizer is an object, or the folder of one, not {tokenizer!r:.60}")
    text = str(tokenizer)
    return open_module_tokenizer(text) if is_module(text) else load_saved(user_path(text), TOKENIZERS)


def ids_of(tokenizer: Tokenizer, images: Tensor, labels: Tensor | None) -> Tensor:
    """Ids (B, N) of images (B, C, H, W) on the CPU, wherever the tokenizer is; labels (B,) only for an oracle."""
    device = device_of(tokenizer)
    known = labels.to(device=device) if tokenizer.needs_labels and labels is not None else None
    return tokenizer(images.to(device=device), known).cpu()  # type: ignore[no-any-return]


def tokenize(
    tokenizer: Tokenizer,
    source: Source,
    batch_size: int = 256,
    *,
    seed: int | None = None,
    limit: int | None = None,
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
