"""The two ends of the scale: tokens that know nothing of the class, and tokens that are the class."""

from __future__ import annotations

import hashlib
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from clustermim.data import open_source
from clustermim.errors import DataError, TokenizerError
from clustermim.patches import grid_size
from clustermim.tokenizers.base import Tokenizer, check_sizes


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
        drawn = np.stack([self._draw(image.tobytes(), rows * columns) for image in rounded])
        return torch.from_numpy(drawn).to(images.device)

    def _draw(self, image: bytes, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        digest = hashlib.sha256(self.seed.to_bytes(8, "little", signed=True) + image).digest()
        return np.random.default_rng(np.frombuffer(digest, dtype=np.uint64)).integers(self.k, size=count)


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
        if len(labels) and int(labels.max()) >= self.vocab_size:
            raise TokenizerError(
                f"label {int(labels.max())} is not among the {self.vocab_size} classes it was fitted on"
            )
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        return labels[:, None].expand(-1, rows * columns).contiguous()
