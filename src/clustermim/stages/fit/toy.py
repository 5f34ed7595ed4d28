"""`clustermim fit toy`: the tokenizers of the paper's theory, on images."""

from __future__ import annotations

from typing import Any

from clustermim.data import Source
from clustermim.runs import Run
from clustermim.stages.fit.folder import fit_into
from clustermim.tokenizers.prototypes import Partition, PrototypeTokenizer


def fit_toy(data: str, out: str, partition: Partition = "prototype", tokens: int = 4, overwrite: bool = False) -> None:
    """Make a tokenizer of the toy model on `textures:` images, with the closed forms of what it should score.

    Args:
        data: `textures:` with its options.
        out: the run folder to write.
        partition: a token for each prototype, each pattern of classes or each class, or tokens across all classes.
        tokens: number of tokens across all classes.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = PrototypeTokenizer(partition, tokens)

    def fit(source: Source, run: Run) -> dict[str, Any]:
        tokenizer.fit(source)
        return {"vocab_size": tokenizer.vocab_size, **tokenizer.exact()}

    fit_into(tokenizer, fit, data, out, overwrite)
