"""The decoder of a run as an encoder: what it says of every patch when the encoder has seen the whole image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from clustermim.data.transforms import normalize
from clustermim.errors import ConfigError, RunError
from clustermim.models.backbones import Backbone
from clustermim.models.encoder import Encoder, build_described, load_encoder, to_safetensors
from clustermim.models.mim import CosineHead, Layout, MaskedAutoencoder, make_model
from clustermim.reading import read_bytes
from clustermim.weights import check_like, read_header, shapes_only

Features = Literal["predictor"]
DECODER = "decoder.safetensors"  # what a run has learned besides its encoder
OTHERS = {"head.weight": "beit", "token_mask_token": "mage"}  # what its tensors tell of other layouts


class Predictor(nn.Module):
    """Images (B, C, H, W) in [0, 1] to the decoder's last features (B, 1+N, W), before its head.

    Nothing is masked, and the decoder is asked for every patch, with mask tokens beside the encoder's tokens: only what
    it says of mask tokens was ever trained. The first is asked for at the class token's place.
    """

    def __init__(self, encoder: Encoder, net: MaskedAutoencoder) -> None:
        super().__init__()
        self.net, self.mean, self.std = net, encoder.mean, encoder.std
        self.width, self.model = net.decoder_embed.out_features, encoder.model
        self.image_size, self.channels, self.grid = encoder.image_size, encoder.channels, encoder.grid

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.net.encoder(normalize(images, self.mean, self.std))  # (B, 1+N, D)
        seen = torch.arange(tokens.shape[1] - 1, device=images.device)  # (N,)
        asked = torch.arange(-1, tokens.shape[1] - 1, device=images.device)  # (1+N,), −1 is the class token's place
        places = torch.cat([seen, asked]).expand(len(images), -1)  # (B, N+1+N)
        return self.net.ask(self.net.decoder_embed(tokens), places, len(asked))

    @property
    def weights(self) -> str:
        """A hash of all weights that its features depend on."""
        state = {name: value for name, value in self.net.state_dict().items() if not name.startswith("decoder_pred.")}
        return hashlib.sha256(to_safetensors(state)).hexdigest()


def load_predictor(run: str | Path | Encoder) -> Predictor:
    """The predictor of a run folder, ready for evaluation."""
    if isinstance(run, Encoder):
        raise RunError("the predictor lies in a run folder, beside the encoder: name the folder")
    encoder, path = load_encoder(run), Path(run) / DECODER
    try:
        header = read_header(path)
        layout = next((name for mark, name in OTHERS.items() if mark in header), None)
        if layout:
            raise RunError(
                f"{run} was pretrained with --layout {layout}, without a predictor of images: probe its encoder"
            )
        with shapes_only():  # nothing is made before it is known to fit
            check_like(header, _own(_net_like(header, build_described(encoder.describe()))))
        net = _net_like(header, encoder.backbone)
        net.load_state_dict(load(read_bytes(path)), strict=False)  # the encoder is there
    except FileNotFoundError:
        raise RunError(f"{run} holds no {DECODER}: only a run of pretrain has a predictor") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except (ConfigError, KeyError, ValueError, IndexError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{path} is of a decoder that this version cannot read: {reason}") from error
    return Predictor(encoder, net).eval()


def _net_like(header: Mapping[str, Tensor], backbone: Backbone) -> MaskedAutoencoder:
    """A model with a decoder of the shape that a file has, and new weights."""
    depth = len({name.split(".")[1] for name in header if name.startswith("decoder_blocks.")})
    decoder = header["decoder_embed.weight"].shape[0], depth, "encoder_norm.weight" in header
    layout: Layout = "mixmae" if "mix_embed" in header else "mae"
    net = make_model(layout, backbone, header["decoder_pred.weight"].shape[0], *decoder)
    assert isinstance(net, MaskedAutoencoder)
    if "decoder_pred.bias" not in header:
        net.decoder_pred = CosineHead(net.decoder_pred.weight)
    return net


def _own(net: MaskedAutoencoder) -> dict[str, Tensor]:
    """The weights that are not the encoder's."""
    return {name: value for name, value in net.state_dict().items() if not name.startswith("encoder.")}
