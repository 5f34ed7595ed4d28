"""The target and the model that the names on the command line stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from clustermim.data import Source
from clustermim.data.statistics import ChannelStats
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.models.mim import MaskedAutoencoder, MaskedEncoder
from clustermim.models.vit import Size, ViT, find_size
from clustermim.targets import FeatureTarget, HOGTarget, PixelTarget, Target, TokenTarget
from clustermim.targets.pixels import PixelLoss
from clustermim.teachers import open_teacher
from clustermim.tokenizers import load_tokenizer

Layout = Literal["mae", "beit"]
TargetName = Literal["pixels", "hog", "features", "tokens"]
MaskedModel = MaskedAutoencoder | MaskedEncoder


@dataclass(frozen=True)
class TargetOptions:
    """What is to be predicted, as `pretrain` is asked for it."""

    target: TargetName
    patch_size: int
    tokenizer: str | None = None
    teacher: str | None = None
    normalize_pixels: bool = False
    pixel_loss: PixelLoss | None = None
    label_smoothing: float = 0.0

    def check(self) -> None:
        """Refuse an option of another target; one that its target cannot do without must be there."""
        for option, value, name in (
            ("--tokenizer", self.tokenizer, "tokens"),
            ("--teacher", self.teacher, "features"),
            ("--pixel-loss", self.pixel_loss, "pixels"),
            ("--normalize-pixels", self.normalize_pixels or None, "pixels"),
            ("--label-smoothing", self.label_smoothing or None, "tokens"),
        ):
            if value is not None and self.target != name:
                raise ConfigError(f"{option} is for --target {name}, not {self.target}")
        if self.target == "tokens" and self.tokenizer is None:
            raise ConfigError("--target tokens needs --tokenizer, the folder of a fitted tokenizer")
        if self.target == "features" and self.teacher is None:
            raise ConfigError("--target features needs --teacher, such as run:FOLDER of an encoder pretrained here")


def make_target(options: TargetOptions, source: Source, stats: ChannelStats) -> Target:
    """The target of that name, for the images of a source."""
    options.check()
    channels = source.shape[0]
    if options.tokenizer is not None:
        return _token_target(options.tokenizer, options, source)
    if options.teacher is not None:
        return _feature_target(options.teacher, options, source)
    if options.target == "hog":
        return HOGTarget(options.patch_size, channels)
    return PixelTarget(
        options.patch_size, channels, stats.mean, stats.std, options.normalize_pixels, options.pixel_loss
    )


def _token_target(tokenizer: str, options: TargetOptions, source: Source) -> TokenTarget:
    target = TokenTarget(load_tokenizer(tokenizer), options.label_smoothing)
    if target.patch_size != options.patch_size or target.channels != source.shape[0]:
        raise TokenizerError(
            f"the tokenizer {tokenizer} is for patches of {target.patch_size} pixels and {target.channels} channels, "
            f"and the model for {options.patch_size} and {source.shape[0]}: fit one that agrees"
        )
    if target.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and the tokenizer {tokenizer} is made of them")
    if target.needs_labels and len(source.class_names) > target.dim:
        raise DataError(
            f"{source.spec} has {len(source.class_names)} classes, and the tokenizer {tokenizer} knows {target.dim}"
        )
    target(torch.zeros(1, *source.shape), torch.zeros(1, dtype=torch.long))  # a grid that it cannot take is refused
    return target


def _feature_target(teacher: str, options: TargetOptions, source: Source) -> FeatureTarget:
    target = FeatureTarget(open_teacher(teacher), options.patch_size)
    target(torch.zeros(1, *source.shape))  # images or a grid that the teacher cannot take are refused here
    return target


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
