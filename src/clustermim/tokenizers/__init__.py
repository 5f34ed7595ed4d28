"""Tokenizers: images to ids. A new one is one file and one entry in `TOKENIZERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from clustermim.errors import TokenizerError
from clustermim.factories import PREFIX, call_factory
from clustermim.files import user_path
from clustermim.tokenizers.base import Tokenizer, load_saved
from clustermim.tokenizers.external import ExternalTokenizer
from clustermim.tokenizers.kmeans import KMeansTokenizer
from clustermim.tokenizers.learned import LearnedTokenizer, RandomProjectionTokenizer
from clustermim.tokenizers.modules import ModuleTokenizer
from clustermim.tokenizers.quantizers import QUANTIZERS
from clustermim.tokenizers.reference import LabelTokenizer, PrototypeTokenizer, RandomTokenizer
from clustermim.tokenizers.usage import ids_of, tokenize

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


def load_tokenizer(tokenizer: str | Path | Tokenizer | Callable[[Tensor], Any]) -> Tokenizer:
    """The fitted tokenizer that a folder holds, or that `module:package.module:factory` makes; one is kept as it is.

    A callable from images to ids that says its `vocab_size` and `patch_size` is one too.

    >>> RandomTokenizer(k=4, patch_size=4).fit("digits/train").save("random")
    >>> load_tokenizer("random").vocab_size
    4
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if callable(tokenizer) and hasattr(tokenizer, "vocab_size"):
        return ModuleTokenizer.of_object(tokenizer)
    if not isinstance(tokenizer, str | Path):
        raise TokenizerError(f"a tokenizer is an object, or the folder of one, not {tokenizer!r:.60}")
    text = str(tokenizer)
    if text.startswith(PREFIX):
        return ModuleTokenizer(text, *call_factory(text, TokenizerError, "a callable from images to ids"))
    return load_saved(user_path(text), TOKENIZERS)
