"""The target and the model that the names on the command line stand for."""

from __future__ import annotations

from typing import Literal

from clustermim.data import Source
from clustermim.data.statistics import ChannelStats
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.models.mim import MaskedAutoencoder, MaskedEncoder
from clustermim.models.vit import ViT, find_size
from clustermim.targets import HOGTarget, PixelTarget, Target, TokenTarget
from clustermim.tokenizers import load_tokenizer

Layout = Literal["mae", "beit"]
TargetName = Literal["pixels", "hog", "tokens"]
MaskedModel = MaskedAutoencoder | MaskedEncoder


def make_target(
    name: TargetName,
    source: Source,
    stats: ChannelStats,
    patch_size: int,
    tokenizer: str | None,
    normalize_pixels: bool,
    label_smoothing: float,
) -> Target:
    """The target of that name, for the images of a source."""
    channels = source.shape[0]
    if name != "tokens" and tokenizer is not None:
        raise ConfigError(f"--tokenizer is for --target tokens, not {name}")
    if name == "pixels":
        return PixelTarget(patch_size, channels, stats.mean, stats.std, normalize_pixels)
    if name == "hog":
        return HOGTarget(patch_size, channels)
    if tokenizer is None:
        raise ConfigError("--target tokens needs --tokenizer, the folder of a fitted tokenizer")
    target = TokenTarget(load_tokenizer(tokenizer), label_smoothing)
    if target.patch_size != patch_size or target.channels != channels:
        raise TokenizerError(
            f"the tokenizer {tokenizer} is for patches of {target.patch_size} pixels and {target.channels} channels, "
            f"and the model for {patch_size} and {channels}: fit one that agrees"
        )
    if target.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and the tokenizer {tokenizer} is made of them")
    return target


def make_model(layout: Layout, encoder: ViT, name: str, dim: int) -> MaskedModel:
    """The encoder in one of the two layouts, with a head that predicts `dim` values of a patch."""
    size = find_size(name)
    if layout == "mae":
        return MaskedAutoencoder(encoder, size.decoder_width, size.decoder_depth, size.decoder_heads, dim)
    return MaskedEncoder(encoder, dim)
