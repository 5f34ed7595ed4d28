"""An encoder that reads tokens, as MAGE's does, together with the tokenizer that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from torch import Tensor

from clustermim.errors import RunError
from clustermim.models import encoder as plain
from clustermim.models.encoder import Encoder, encoder_folder
from clustermim.models.predictor import Features, Predictor, load_predictor
from clustermim.models.vit import TokenViT
from clustermim.tokenizers import Tokenizer, load_tokenizer

FOLDER = "tokenizer"  # inside that of the encoder


class TokenEncoder(Encoder):
    """Images (B, C, H, W) in [0, 1] to tokens (B, 1+N, D), the class token first, by way of their ids."""

    def __init__(self, tokenizer: Tokenizer, *encoder: Any) -> None:
        super().__init__(*encoder)
        self.tokenizer = tokenizer.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.backbone(self.tokenizer(images))
        return tokens

    def save(self, folder: str | Path) -> None:
        """Write weights and description into a folder, and the tokenizer into one inside it."""
        super().save(folder)
        self.tokenizer.save(Path(folder) / FOLDER)


@overload
def load_encoder(encoder: str | Path | Encoder) -> Encoder: ...


@overload
def load_encoder(encoder: str | Path | Encoder, features: Features | None) -> Encoder | Predictor: ...


def load_encoder(encoder: str | Path | Encoder, features: Features | None = None) -> Encoder | Predictor:
    """The encoder of a folder, ready for evaluation, with its tokenizer if it reads tokens; one is kept as it is.

    The folder is that of a run, or of an export; `hf:OWNER/NAME` is an export on the hub.
    With `features="predictor"` it is the run's decoder that describes the patches, when the encoder has seen them all.

    >>> import clustermim as cm
    >>> encoder = cm.pretrain("digits/train", patch_size=4, epochs=1, out="run")
    >>> cm.load_encoder("run").width
    128
    """
    if features is not None:
        return load_predictor(encoder)
    found = plain.load_encoder(encoder)
    if found is encoder or not isinstance(found.backbone, TokenViT):
        return found
    tokenizer = load_tokenizer(encoder_folder(str(encoder)) / FOLDER)
    sizes = len(found.backbone.patch_embed.weight), found.patch_size, found.channels  # type: ignore[arg-type]
    if (tokenizer.vocab_size, tokenizer.patch_size, tokenizer.channels_) != sizes:
        raise RunError(f"{encoder} holds a tokenizer that is not its encoder's: pretrain or copy it anew")
    return TokenEncoder(tokenizer, found.backbone, found.model, found.mean, found.std).eval()
