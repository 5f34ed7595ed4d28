"""Tokenizers: images to ids. A new one is one file and one entry in `TOKENIZERS`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from clustermim.data.source import Batch, Source, to_float
from clustermim.distributed import rank, world
from clustermim.errors import DataError
from clustermim.progress import track
from clustermim.tokenizers.contract import Tokenizer
from clustermim.tokenizers.kmeans import KMeansTokenizer
from clustermim.tokenizers.reference import LabelTokenizer, RandomTokenizer
from clustermim.tokenizers.storage import load_saved, save_tokenizer

__all__ = [
    "TOKENIZERS",
    "KMeansTokenizer",
    "LabelTokenizer",
    "RandomTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "save_tokenizer",
    "tokenize",
]

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "kmeans": KMeansTokenizer,
    "random": RandomTokenizer,
    "labels": LabelTokenizer,
}


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The fitted tokenizer that a folder holds."""
    return load_saved(folder, TOKENIZERS)


def tokenize(tokenizer: Tokenizer, source: Source, batch_size: int = 256) -> Iterator[tuple[Batch, Tensor]]:
    """Every batch of a source, in order, with the ids (B, N) of its patches; this rank's share on several."""
    if tokenizer.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and a {tokenizer.kind} tokenizer needs them")
    total = -(-len(source) // (batch_size * world()))
    batches = source.batches(batch_size, rank=rank(), world=world())
    for batch in track(batches, "tokenizing", total=total):
        labels = batch.labels if tokenizer.needs_labels else None
        yield batch, tokenizer(to_float(batch.images), labels)
