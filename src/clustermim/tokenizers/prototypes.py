"""The tokenizers of the paper's toy model on `textures:` images, whose prototypes are known."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from clustermim.data import open_source
from clustermim.data.textures import TextureSource
from clustermim.errors import DataError
from clustermim.patches import patchify
from clustermim.theory.toy import class_gram, tok_class, tok_cross, tok_identity, tok_pattern, token_counts
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.nearest import nearest_center

Partition = Literal["prototype", "pattern", "class", "cross"]


class PrototypeTokenizer(Tokenizer):
    """The nearest prototype of a patch, brightness aside, and then the token to which that prototype belongs.

    Args:
        partition: one token a prototype; one for each set of classes that share prototypes (`pattern`); one a class,
            shared prototypes dealt out in turn; or tokens with equal parts of every class (`cross`).
        tokens: number of tokens of `cross`.
    """

    kind = "toy"
    prototypes_: Tensor  # (P, d), each with mean 0
    tokens_: Tensor  # (P,), the token of each
    gram_: list[list[float]]  # G of the toy model (docs/theory.md#the-toy-model), classes × classes

    def __init__(self, partition: Partition = "prototype", tokens: int = 4) -> None:
        super().__init__()
        self.partition, self.tokens = partition, tokens

    def results(self) -> dict[str, Any]:
        """Also the closed forms of what it should score."""
        return super().results() | self.exact()

    def fit(self, source: object) -> Self:
        """Take the prototypes from the source and divide them."""
        images = open_source(source)
        if not isinstance(images, TextureSource):
            raise DataError(f"{images.spec} has no known prototypes: the toy model's tokenizers are for textures:")
        incidence = images.incidence
        divide = {"prototype": tok_identity, "pattern": tok_pattern, "class": tok_class}
        ids = tok_cross(incidence, self.tokens) if self.partition == "cross" else divide[self.partition](incidence)
        self.gram_ = class_gram(token_counts(incidence, ids)).tolist()
        self.channels_, self.patch_size = images.shape[0], images.patch_size
        self.vocab_size = int(ids.max()) + 1
        pictures = torch.from_numpy(images.prototypes).float().div(255)  # (P, C, p, p)
        self.register_buffer("prototypes_", _flat(patchify(pictures, self.patch_size)[:, 0]))
        self.register_buffer("tokens_", torch.from_numpy(ids))
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        patches = patchify(images, self.patch_size)  # (B, N, d)
        found, _ = nearest_center(_flat(patches).flatten(0, 1), self.prototypes_)
        return self.tokens_[found].reshape(patches.shape[:2])

    def exact(self) -> dict[str, float]:
        """Σλ² and α of these tokens when the view is a whole image, in closed form: tr G² and 1 − tr G / s.

        An image has so many patches that its view is its class; the toy model's own view is one patch, which multiplies
        each eigenvalue by one more factor θ.
        """
        gram = np.array(self.gram_)
        return {"sum_sq": float((gram * gram).sum()), "alpha": float(1 - np.trace(gram) / len(gram))}


def _flat(patches: Tensor) -> Tensor:
    """Patches (…, d) without their brightness, which the source varies."""
    return patches - patches.mean(-1, keepdim=True)
