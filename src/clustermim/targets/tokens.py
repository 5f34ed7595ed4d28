"""Tokens, as ClusterMIM and BEiT predict them."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source
from clustermim.errors import ConfigError, TokenizerError
from clustermim.targets.base import Target, TargetOptions
from clustermim.tokenizers import Tokenizer, load_tokenizer


class TokenTarget(Target):
    """The ids that a tokenizer gives: ClusterMIM, BEiT, and the label oracle."""

    kind = "tokens"
    takes = ("tokenizer", "label_smoothing")

    def __init__(self, tokenizer: Tokenizer, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"--label-smoothing {label_smoothing} is not in 0 ≤ … < 1")
        if not hasattr(tokenizer, "channels_"):
            raise TokenizerError(f"this {tokenizer.kind} tokenizer is not fitted: call fit(source) or load one")
        self.tokenizer, self.label_smoothing = tokenizer, label_smoothing
        self.dim, self.patch_size, self.channels = tokenizer.vocab_size, tokenizer.patch_size, tokenizer.channels_
        self.needs_labels = tokenizer.needs_labels

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        if options.tokenizer is None:
            raise ConfigError("--target tokens needs --tokenizer, the folder of a fitted tokenizer")
        return cls(load_tokenizer(options.tokenizer), options.label_smoothing)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N)."""
        ids: Tensor = self.tokenizer(images, labels if self.needs_labels else None)
        return ids

    def version(self) -> str:
        return self.tokenizer.version()

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean cross-entropy over all masked patches."""
        logits = prediction.float().flatten(0, 1)  # (B·m, vocab_size)
        return F.cross_entropy(logits, values.flatten(), label_smoothing=self.label_smoothing)
