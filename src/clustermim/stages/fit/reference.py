"""`clustermim fit random` and `clustermim fit labels`: the two ends of the scale."""

from __future__ import annotations

from clustermim.stages.fit.folder import fit_into
from clustermim.tokenizers import LabelTokenizer, RandomTokenizer


def fit_random(data: str, out: str, k: int = 50, patch_size: int = 16, seed: int = 0, overwrite: bool = False) -> None:
    """Make the tokenizer that knows nothing: ids drawn at random for every image, the same each time.

    Args:
        data: where the images are; only their number of channels is used.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels.
        seed: another seed gives other ids.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = RandomTokenizer(k, patch_size, seed)
    fit_into(tokenizer, lambda source, run: {"vocab_size": tokenizer.fit(source).vocab_size}, data, out, overwrite)


def fit_labels(data: str, out: str, patch_size: int = 16, overwrite: bool = False) -> None:
    """Make the oracle: the id of every patch is the class of its image. It needs labels wherever it is used.

    Args:
        data: where the labelled images are.
        out: the run folder to write.
        patch_size: side of a patch in pixels.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = LabelTokenizer(patch_size)
    fit_into(tokenizer, lambda source, run: {"vocab_size": tokenizer.fit(source).vocab_size}, data, out, overwrite)
