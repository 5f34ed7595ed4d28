"""The two layouts of masked image modelling. Both map images and a mask to predictions for the masked patches.

Tokens need no order, because each carries its position: here the masked ones stand last, and nothing is shuffled back.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.errors import ConfigError
from clustermim.models.backbones import Backbone, decoder_shape
from clustermim.models.masking import Mask
from clustermim.models.vit import NORM_EPS, Block, initialise, make_positions, run_blocks

Layout = Literal["mae", "beit"]


class MaskedAutoencoder(nn.Module):
    """MAE's layout: the encoder sees the visible patches only, and a decoder predicts the masked ones."""

    def __init__(
        self, encoder: Backbone, decoder_width: int, decoder_depth: int, decoder_heads: int, out_dim: int
    ) -> None:
        super().__init__()
        if min(decoder_depth, out_dim) < 1:
            raise ConfigError(f"a decoder needs depth ≥ 1 and out_dim ≥ 1, not {decoder_depth} and {out_dim}")
        self.decoder_embed = nn.Linear(encoder.width, decoder_width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, decoder_width).normal_(std=0.02))
        self.decoder_pos_embed = make_positions(encoder.grid, decoder_width)  # (1, 1+N, W)
        self.decoder_blocks = nn.ModuleList(Block(decoder_width, decoder_heads) for _ in range(decoder_depth))
        self.decoder_norm = nn.LayerNorm(decoder_width, NORM_EPS)
        self.decoder_pred = nn.Linear(decoder_width, out_dim)
        self.apply(initialise)
        self.encoder = encoder  # last, so that an encoder with loaded weights keeps them

    def forward(self, images: Tensor, mask: Mask, with_class: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Normalised images (B, C, H, W) to predictions (B, m, out_dim), in the order of `mask.masked`.

        With `with_class` also to the encoder's class token (B, D).
        """
        batch, count = mask.masked.shape
        tokens = self.encoder(images, mask.keep)  # (B, 1+n, D)
        visible = self.decoder_embed(tokens)  # (B, 1+n, W)
        x = torch.cat([visible, self.mask_token.expand(batch, count, -1)], dim=1)  # (B, 1+N, W)
        place = F.pad(torch.cat([mask.keep, mask.masked], dim=1) + 1, (1, 0))  # (B, 1+N), the class token's is 0
        x = x + F.embedding(place, self.decoder_pos_embed[0])  # (B, 1+N, W)
        x = run_blocks(self.decoder_blocks, x, last=count)  # (B, m, W)
        out: Tensor = self.decoder_pred(self.decoder_norm(x))  # (B, m, out_dim)
        return (out, tokens[:, 0]) if with_class else out


class MaskedEncoder(nn.Module):
    """BEiT's layout: mask tokens stand in for the masked patches in the encoder, and a linear head predicts."""

    def __init__(self, encoder: Backbone, out_dim: int) -> None:
        super().__init__()
        if out_dim < 1:
            raise ConfigError(f"a head needs out_dim ≥ 1, not {out_dim}")
        self.mask_token = nn.Parameter(torch.empty(1, 1, encoder.width).normal_(std=0.02))
        self.head = nn.Linear(encoder.width, out_dim)
        self.apply(initialise)
        self.encoder = encoder  # last, so that an encoder with loaded weights keeps them

    def forward(self, images: Tensor, mask: Mask) -> Tensor:
        """Normalised images (B, C, H, W) to predictions (B, m, out_dim), in the order of `mask.masked`."""
        x = self.encoder.encode_masked(images, mask.keep, mask.masked, self.mask_token)  # (B, m, D)
        out: Tensor = self.head(x)  # (B, m, out_dim)
        return out


MaskedModel = MaskedAutoencoder | MaskedEncoder


def make_model(
    layout: Layout, encoder: Backbone, out_dim: int, decoder_width: int = 0, decoder_depth: int = 0
) -> MaskedModel:
    """The encoder in one of the two layouts, predicting `out_dim` values; 0 is the decoder that the encoder has."""
    if layout == "mae":
        return MaskedAutoencoder(encoder, *decoder_shape(encoder.decoder, decoder_width, decoder_depth), out_dim)
    if decoder_width or decoder_depth:
        raise ConfigError("--decoder-width and --decoder-depth are for --layout mae: beit has no decoder")
    return MaskedEncoder(encoder, out_dim)
