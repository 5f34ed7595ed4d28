"""Encoders and what they are made of: backbones, masks, and the two layouts of masked image modelling."""

from clustermim.models.backbones import BACKBONES, Backbone, Positions, build_backbone
from clustermim.models.encoder import Encoder, load_encoder
from clustermim.models.masking import Mask, block_mask, mask_from_noise, random_mask, visible_count
from clustermim.models.mim import Layout, MaskedAutoencoder, MaskedEncoder, MaskedModel, make_model
from clustermim.models.vit import SIZES, Size, ViT, find_size, resize_positions

__all__ = [
    "BACKBONES",
    "SIZES",
    "Backbone",
    "Encoder",
    "Layout",
    "Mask",
    "MaskedAutoencoder",
    "MaskedEncoder",
    "MaskedModel",
    "Positions",
    "Size",
    "ViT",
    "block_mask",
    "build_backbone",
    "find_size",
    "load_encoder",
    "make_model",
    "mask_from_noise",
    "random_mask",
    "resize_positions",
    "visible_count",
]
