"""The ViT encoder, masks, and the two layouts of masked image modelling."""

from clustermim.models.masking import Mask, block_mask, mask_from_noise, random_mask, visible_count
from clustermim.models.mim import MaskedAutoencoder, MaskedEncoder
from clustermim.models.vit import SIZES, Positions, Size, ViT, find_size, resize_positions

__all__ = [
    "SIZES",
    "Mask",
    "MaskedAutoencoder",
    "MaskedEncoder",
    "Positions",
    "Size",
    "ViT",
    "block_mask",
    "find_size",
    "mask_from_noise",
    "random_mask",
    "resize_positions",
    "visible_count",
]
