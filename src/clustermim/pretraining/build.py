"""The model that the names on the command line stand for."""

from __future__ import annotations

from typing import Literal

from clustermim.errors import ConfigError
from clustermim.models.mim import MaskedAutoencoder, MaskedEncoder
from clustermim.models.vit import Size, ViT, find_size

Layout = Literal["mae", "beit"]
TargetName = Literal["pixels", "hog", "features", "tokens"]
MaskedModel = MaskedAutoencoder | MaskedEncoder


def decoder_size(layout: Layout, model: str, decoder_width: int, decoder_depth: int) -> Size:
    """The size of that name, with the decoder that is asked for."""
    if layout == "beit" and (decoder_width or decoder_depth):
        raise ConfigError("--decoder-width and --decoder-depth are for --layout mae: beit has no decoder")
    return find_size(model, decoder_width, decoder_depth)


def make_model(layout: Layout, encoder: ViT, size: Size, dim: int) -> MaskedModel:
    """The encoder in one of the two layouts, with a decoder of that size or a head that predicts `dim` values."""
    if layout == "mae":
        return MaskedAutoencoder(encoder, size.decoder_width, size.decoder_depth, size.decoder_heads, dim)
    return MaskedEncoder(encoder, dim)
