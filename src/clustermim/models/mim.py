"""The layouts of masked image modelling. Each maps images and a mask to predictions for the masked patches.

Tokens need no order, because each carries its position: here the masked ones stand last, and nothing is shuffled back.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.errors import ConfigError
from clustermim.models.backbones import Backbone, decoder_shape
from clustermim.models.cross import CrossBlock
from clustermim.models.masking import Mask
from clustermim.models.vit import NORM_EPS, Block, TokenViT, initialise, make_positions, run_blocks
from clustermim.patches import select

Layout = Literal["mae", "beit", "blank", "mixmae", "mage"]


class MaskedAutoencoder(nn.Module):
    """MAE's layout: the encoder sees the visible patches only, and a decoder predicts the masked ones."""

    layout: Layout = "mae"

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
        self.decoder_pred: nn.Linear | CosineHead = nn.Linear(decoder_width, out_dim)
        self.apply(initialise)
        self.encoder = encoder  # last, so that an encoder with loaded weights keeps them

    def forward(self, images: Tensor, mask: Mask, with_class: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Normalised images (B, C, H, W) to predictions (B, m, out_dim), in the order of `mask.masked`.

        With `with_class` also to the encoder's class token (B, D).
        """
        tokens = self.encode(images, mask.keep)  # (B, 1+n, D)
        places = torch.cat([mask.keep, mask.masked], dim=1)  # (B, N)
        out = self.decode(self.decoder_embed(tokens), places, mask.masked.shape[1])  # (B, m, out_dim)
        return (out, tokens[:, 0]) if with_class else out

    def decode(self, visible: Tensor, places: Tensor, last: int) -> Tensor:
        """Embedded tokens (B, 1+n, W), mask tokens after them, to predictions (B, last, out_dim) of the last `places`.

        `places` (B, N) are the patches in the order of the sequence.
        """
        out: Tensor = self.decoder_pred(self.ask(visible, places, last))  # (B, last, out_dim)
        return out

    def ask(self, visible: Tensor, places: Tensor, last: int) -> Tensor:
        """The same, to the features (B, last, W) from which the head predicts."""
        missing = 1 + places.shape[1] - visible.shape[1]
        x = torch.cat([visible, self.mask_token.expand(len(places), missing, -1)], dim=1)  # (B, 1+N, W)
        place = F.pad(places + 1, (1, 0))  # (B, 1+N), the class token's is 0
        x = x + F.embedding(place, self.decoder_pos_embed[0])  # (B, 1+N, W)
        out: Tensor = self.decoder_norm(run_blocks(self.decoder_blocks, x, last=last))  # (B, last, W)
        return out

    def encode(self, images: Tensor, keep: Tensor) -> Tensor:
        """Tokens (B, 1+n, D) of the visible patches `keep` (B, n), the class token first."""
        tokens: Tensor = self.encoder(images, keep)
        return tokens


class CrossAutoencoder(MaskedAutoencoder):
    """MAE's layout with a decoder of cross-attention, as CrossMAE and CAPI have: each masked patch is asked by itself.

    What is predicted of a patch does not depend on which others are asked for, so that `--predict-fraction` saves in
    proportion.
    """

    def __init__(
        self, encoder: Backbone, decoder_width: int, decoder_depth: int, decoder_heads: int, out_dim: int
    ) -> None:
        super().__init__(encoder, decoder_width, decoder_depth, decoder_heads, out_dim)
        self.decoder_blocks = nn.ModuleList(CrossBlock(decoder_width, decoder_heads) for _ in range(decoder_depth))
        self.decoder_blocks.apply(initialise)
        self.encoder_norm = nn.LayerNorm(decoder_width, NORM_EPS)

    def ask(self, visible: Tensor, places: Tensor, last: int) -> Tensor:
        known, asked = torch.split(places, [places.shape[1] - last, last], dim=1)
        positions = self.decoder_pos_embed[0]
        place = F.pad(known + 1, (1, 0))  # (B, 1+n), the class token's is 0
        tokens = self.encoder_norm(visible + F.embedding(place, positions))  # (B, 1+n, W)
        x = self.mask_token + F.embedding(asked + 1, positions)  # (B, last, W)
        for block in self.decoder_blocks:
            x = block(x, tokens)
        out: Tensor = self.decoder_norm(x)  # (B, last, W)
        return out


class MixedMaskedAutoencoder(MaskedAutoencoder):
    """MixMAE's layout: the encoder sees two images mixed into one, and the decoder predicts of each what is missing.

    Images b and b + B/2 have complementary masks (`masking.pair_mask`). Their visible patches fill the grid together,
    and an embedding marks those of the second. The decoder sees each image by itself.

    The authors (Liu et al., 2022) train a Swin, and their code forbids attention from one image to the other. In a ViT
    nothing else joins the two, so that this would be MAE's layout with a mask ratio of 0.5. Here attention is free, and
    the embedding tells the images apart.
    """

    layout: Layout = "mixmae"

    def __init__(self, encoder: Backbone, *decoder: int) -> None:
        super().__init__(encoder, *decoder)
        self.mix_embed = nn.Parameter(torch.empty(1, 1, encoder.width).normal_(std=0.02))

    def encode(self, images: Tensor, keep: Tensor) -> Tensor:
        return self.encoder.encode_mixed(images, keep, self.mix_embed)


class MaskedGenerativeEncoder(MaskedAutoencoder):
    """MAGE's layout: the encoder reads tokens of the image, shown or as mask tokens, and the decoder predicts tokens.

    The authors (Li et al., 2023) also have dropout, a learned position in the decoder, its class token in place of its
    mask token, and a head that shares the embedding. Here the decoder is MAE's.
    """

    layout: Layout = "mage"
    encoder: TokenViT

    def __init__(self, encoder: TokenViT, *decoder: int) -> None:
        super().__init__(encoder, *decoder)
        self.token_mask_token = nn.Parameter(torch.empty(1, 1, encoder.width).normal_(std=0.02))

    def forward(self, images: Tensor, mask: Mask, with_class: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Ids (B, N) to predictions (B, N, out_dim), in the order of `mask.masked`; see `masking.mage_mask`."""
        assert mask.shown is not None
        shown = mask.shown[:, : mask.keep.shape[1]]  # (B, n)
        tokens = self.encoder.encode_shown(images, mask.keep, shown, self.token_mask_token)  # (B, 1+n, D)
        seen = F.pad(shown, (1, 0), value=True)[..., None]  # (B, 1+n, 1)
        visible = torch.where(seen, self.decoder_embed(tokens), self.mask_token)  # (B, 1+n, W)
        out = self.decode(visible, mask.masked, mask.masked.shape[1])  # (B, N, out_dim)
        return (out, tokens[:, 0]) if with_class else out


class MaskedEncoder(nn.Module):
    """BEiT's layout: mask tokens stand in for the masked patches in the encoder, and a linear head predicts."""

    layout: Layout = "beit"

    def __init__(self, encoder: Backbone, out_dim: int) -> None:
        super().__init__()
        if out_dim < 1:
            raise ConfigError(f"a head needs out_dim ≥ 1, not {out_dim}")
        self.mask_token = nn.Parameter(torch.empty(1, 1, encoder.width).normal_(std=0.02))
        self.head: nn.Linear | CosineHead = nn.Linear(encoder.width, out_dim)
        self.apply(initialise)
        self.encoder = encoder  # last, so that an encoder with loaded weights keeps them

    def forward(self, images: Tensor, mask: Mask) -> Tensor:
        """Normalised images (B, C, H, W) to predictions (B, m, out_dim), in the order of `mask.masked`."""
        x = self.encoder.encode_masked(images, mask.keep, mask.masked, self.mask_token)  # (B, m, D)
        out: Tensor = self.head(x)  # (B, m, out_dim)
        return out


class CosineHead(nn.Module):
    """Cosines (…, K) of vectors (…, W) with K learned directions (K, W)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=1))


class BlankedEncoder(nn.Module):
    """Masked patches are blanked in the image, so that any network can be pretrained, and a linear head predicts.

    Blank is the mean colour, 0 after normalisation: what a network that pads its maps with zeros knows from the edges
    of every image. A learned colour would be one more weight, which the encoder never meets again.
    """

    layout: Layout = "blank"

    def __init__(self, encoder: Backbone, out_dim: int) -> None:
        super().__init__()
        self.head = nn.Linear(encoder.width, out_dim)
        self.apply(initialise)
        self.encoder = encoder  # last, so that an encoder with loaded weights keeps them

    def forward(self, images: Tensor, mask: Mask) -> Tensor:
        """Normalised images (B, C, H, W) to predictions (B, m, out_dim), in the order of `mask.masked`."""
        tokens = self.encoder(blank(images, mask.keep, self.encoder.grid))  # (B, 1+N, D)
        out: Tensor = self.head(select(tokens[:, 1:], mask.masked))  # (B, m, out_dim)
        return out


def blank(images: Tensor, keep: Tensor, grid: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) that are 0 outside of the patches `keep` (B, n)."""
    seen = torch.zeros(len(images), grid[0] * grid[1], dtype=torch.bool, device=images.device).scatter(1, keep, True)
    sizes = images.shape[2] // grid[0], images.shape[3] // grid[1]
    pixels = seen.view(-1, 1, *grid).repeat_interleave(sizes[0], 2).repeat_interleave(sizes[1], 3)  # (B, 1, H, W)
    return torch.where(pixels, images, 0)


MaskedModel = MaskedAutoencoder | MaskedEncoder | BlankedEncoder


def make_model(
    layout: Layout,
    encoder: Backbone,
    out_dim: int,
    decoder_width: int = 0,
    decoder_depth: int = 0,
    cross_decoder: bool = False,
) -> MaskedModel:
    """The encoder in a layout, predicting `out_dim` values; 0 is the decoder that the encoder has."""
    if cross_decoder and layout != "mae":
        raise ConfigError(f"--cross-decoder is for --layout mae, not {layout}")
    if isinstance(encoder, TokenViT) != (layout == "mage"):
        raise ConfigError(
            f"--layout {layout} is not for {type(encoder).__name__}: mage reads tokens, all others images"
        )
    if encoder.whole_images and layout != "blank":
        raise ConfigError(f"--layout {layout} is for ViTs: this network sees whole images, so use --layout blank")
    if layout in ("beit", "blank"):
        if decoder_width or decoder_depth:
            raise ConfigError(f"--decoder-width and --decoder-depth are for --layout mae: {layout} has no decoder")
        return MaskedEncoder(encoder, out_dim) if layout == "beit" else BlankedEncoder(encoder, out_dim)
    decoder = *decoder_shape(encoder.decoder, decoder_width, decoder_depth), out_dim
    if isinstance(encoder, TokenViT):
        return MaskedGenerativeEncoder(encoder, *decoder)
    if layout == "mixmae":
        return MixedMaskedAutoencoder(encoder, *decoder)
    return (CrossAutoencoder if cross_decoder else MaskedAutoencoder)(encoder, *decoder)
