"""Tokens that are known without learning: nothing of the class, the class itself, and those of the toy model."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from clustermim.data import open_source
from clustermim.data.textures import TextureSource
from clustermim.errors import DataError, TokenizerError
from clustermim.patches import grid_size, patchify
from clustermim.theory.toy import class_gram, tok_class, tok_cross, tok_identity, tok_pattern, token_counts
from clustermim.tokenizers.base import Tokenizer, check_sizes
from clustermim.tokenizers.nearest import nearest_center
from clustermim.weights import check_tensor

Partition = Literal["prototype", "pattern", "class", "cross"]


class RandomTokenizer(Tokenizer):
    """Ids drawn uniformly, seeded by the bytes of the whole image: no information, yet the same in any batch.

    Equal patches of different images get unrelated ids; a hash of the patch alone would know its texture.

    >>> RandomTokenizer(k=5, patch_size=4).fit("digits/train")(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 4])
    """

    kind = "random"

    def __init__(self, k: int = 50, patch_size: int = 16, seed: int = 0) -> None:
        super().__init__()
        self.k = self.vocab_size = k
        self.patch_size, self.seed = patch_size, seed

    def fit(self, source: object) -> Self:
        """Nothing to learn but the number of channels."""
        images = open_source(source)
        check_sizes(k=(self.k, 1))
        grid_size(*images.shape[1:], self.patch_size)
        self.channels_ = images.shape[0]
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        rounded = images.mul(255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
        seed, drawn = self.seed.to_bytes(8, "little", signed=True), []
        for image in rounded:
            digest = np.frombuffer(hashlib.sha256(seed + image.tobytes()).digest(), dtype=np.uint64)
            drawn.append(np.random.default_rng(digest).integers(self.k, size=rows * columns))
        return torch.from_numpy(np.stack(drawn)).to(images.device)


class LabelTokenizer(Tokenizer):
    """The oracle of the paper's theorem: the id of every patch is the class of its image.

    >>> LabelTokenizer(patch_size=4).fit("digits/train")(torch.zeros(1, 1, 8, 8), torch.tensor([7])).tolist()
    [[7, 7, 7, 7]]
    """

    kind = "labels"
    needs_labels = True

    def __init__(self, patch_size: int = 16) -> None:
        super().__init__()
        self.patch_size = patch_size

    def fit(self, source: object) -> Self:
        """Count the classes."""
        images = open_source(source)
        if images.labels is None:
            raise DataError(f"{images.spec} has no labels, and the labels tokenizer is made of them")
        grid_size(*images.shape[1:], self.patch_size)
        self.channels_, self.vocab_size = images.shape[0], len(images.class_names)
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None:
            raise TokenizerError("the labels tokenizer needs the labels of the images: tokenizer(images, labels)")
        if len(labels) and (last := int(labels.max())) >= self.vocab_size:
            raise TokenizerError(f"label {last} is not among the {self.vocab_size} classes it was fitted on")
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        return labels[:, None].expand(-1, rows * columns).contiguous()


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

    def check_saved(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        known = check_tensor(tensors, "prototypes", None, fitted["patch_size"] ** 2 * fitted["channels"])
        check_tensor(tensors, "tokens", len(known), dtype=torch.int64)
        if any(len(row) != len(fitted["gram"]) for row in fitted["gram"]):
            raise ValueError("its gram is not square")

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        ids = tensors["tokens"]
        if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= fitted["vocab_size"]:
            raise ValueError("its prototypes belong to no tokens")
        return super().restore(fitted, tensors)

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        patches = patchify(images, self.patch_size)  # (B, N, d)
        found, _ = nearest_center(_flat(patches).flatten(0, 1), self.prototypes_)
        return self.tokens_[found].reshape(patches.shape[:2])

    def results(self) -> dict[str, Any]:
        """Also Σλ² and α of these tokens when the view is a whole image, in closed form: tr G² and 1 − tr G / s.

        An image has so many patches that its view is its class; the toy model's own view is one patch, which multiplies
        each eigenvalue by one more factor θ.
        """
        gram = np.array(self.gram_)
        exact = {"sum_sq": float((gram * gram).sum()), "alpha": float(1 - np.trace(gram) / len(gram))}
        return super().results() | exact


def _flat(patches: Tensor) -> Tensor:
    """Patches (…, d) without their brightness, which the source varies."""
    return patches - patches.mean(-1, keepdim=True)
