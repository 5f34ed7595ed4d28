"""The two ends of the scale: tokens that know nothing of the class, and tokens that are the class."""

from __future__ import annotations

import hashlib
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from clustermim.data.source import Source
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.patches import grid_size
from clustermim.tokenizers.base import Tokenizer


class RandomTokenizer(Tokenizer):
    """Ids drawn uniformly, seeded by the bytes of the whole image: no information, yet the same in any batch.

    Equal patches of different images get unrelated ids; a hash of the patch alone would know its texture.
    """

    kind = "random"

    def __init__(self, k: int, patch_size: int, seed: int = 0) -> None:
        super().__init__()
        self.k = self.vocab_size = k
        self.patch_size = patch_size
        self.seed = seed

    def config(self) -> dict[str, Any]:
        return {"k": self.k, "patch_size": self.patch_size, "seed": self.seed}

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        self.channels_ = fitted["channels"]
        return self

    def fit(self, source: Source) -> Self:
        """Nothing to learn but the number of channels."""
        if self.k < 1:
            raise ConfigError(f"--k {self.k} is too small: 1 at least")
        grid_size(*source.shape[1:], self.patch_size)
        self.channels_ = source.shape[0]
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
    """The oracle of the paper's theorem: the id of every patch is the class of its image."""

    kind = "labels"
    needs_labels = True

    def __init__(self, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size

    def config(self) -> dict[str, Any]:
        return {"patch_size": self.patch_size}

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        self.channels_, self.vocab_size = fitted["channels"], fitted["vocab_size"]
        return self

    def fit(self, source: Source) -> Self:
        """Count the classes."""
        if source.labels is None:
            raise DataError(f"{source.spec} has no labels, and the labels tokenizer is made of them")
        grid_size(*source.shape[1:], self.patch_size)
        self.channels_ = source.shape[0]
        self.vocab_size = len(source.class_names)
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
