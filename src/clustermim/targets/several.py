"""The ids of several tokenizers at once: each patch has a token of each, and each tokenizer a head of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.data import Source
from clustermim.errors import ConfigError
from clustermim.targets.kinds import Target, TargetOptions, TokenTarget
from clustermim.tokenizers import Tokenizer, load_tokenizer


class MultiTokenTarget(Target):
    """The ids that several tokenizers give: more to predict of a patch, for little more than one of them costs.

    The head predicts scores of all their tokens side by side, dim = K₁ + K₂ + …, and the loss is the mean of the
    tokenizers' cross-entropies, each by a softmax over its own tokens.
    """

    kind = "multi-tokens"
    takes = ("tokenizers", "label_smoothing")

    def __init__(self, tokenizers: Sequence[Tokenizer], smoothing: float = 0.0) -> None:
        super().__init__()
        if len(tokenizers) < 2:
            raise ConfigError("--target multi-tokens needs two --tokenizers or more; for one there is --target tokens")
        for tokenizer in tokenizers:
            tokenizer.check_fitted()
        if any(tokenizer.needs_labels for tokenizer in tokenizers):
            raise ConfigError("--tokenizers must follow from the image alone: labels are for --target tokens")
        shapes = {(tokenizer.patch_size, tokenizer.channels_) for tokenizer in tokenizers}
        if len(shapes) > 1:
            found = ", ".join(f"{size} pixels and {channels} channels" for size, channels in sorted(shapes))
            raise ConfigError(f"--tokenizers are for different patches: {found}; fit them for the same")
        self.tokenizers, self.smoothing = nn.ModuleList(tokenizers), smoothing
        self.sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
        self.dim, ((self.patch_size, self.channels),) = sum(self.sizes), shapes

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        return cls([load_tokenizer(name) for name in options.tokenizers or ()], options.label_smoothing)

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N, T) of T tokenizers."""
        return torch.stack([cast(Tokenizer, tokenizer).ids(images, None) for tokenizer in self.tokenizers], dim=2)

    def version(self) -> str:
        return "-".join(cast(Tokenizer, tokenizer).version() for tokenizer in self.tokenizers)

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean cross-entropy of scores (B, m, K₁ + … + K_T) with ids (B, m, T), over patches and tokenizers."""
        scores = torch.split(prediction.float().flatten(0, 1), self.sizes, dim=1)  # T of (B·m, K_t)
        ids = values.flatten(0, 1).unbind(1)  # T of (B·m,)
        losses = [F.cross_entropy(*pair, label_smoothing=self.smoothing) for pair in zip(scores, ids, strict=True)]
        return torch.stack(losses).mean()

    def first(self) -> TokenTarget:
        """The target of the first tokenizer alone, for pictures."""
        return TokenTarget(cast(Tokenizer, self.tokenizers[0]), self.smoothing)
