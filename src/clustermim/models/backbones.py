"""What pretraining, evaluation, export and teachers need of an encoder network, and the networks by name.

To add a backbone: a subclass of `Backbone` and an entry in `BACKBONES`. Then `model="name"` or `"name:rest"` builds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from clustermim.errors import ConfigError

Positions = Literal["sincos", "learned"]
MOST_REGISTERS = 1024  # DINOv2's are 4, CAPI's 16
DECODER_HEAD = 32  # the width of every decoder's heads, as MAE's are


class Backbone(nn.Module):
    """Normalised images (B, C, H, W) to tokens (B, 1+N, D): one for the image, then the patches, row-major.

    `forward` and the attributes are needed by all; what else is missing is refused where it is asked for.

    Attributes:
        image_size: (height, width) of its images.
        patch_size: side of a patch in pixels.
        channels: of its images.
        width: D, the length of a token.
        depth: the layers that `tokens_of_layer` knows.
        position_kind: how it knows positions.
        registers: learned tokens that it has besides, and does not give.
        decoder: width and depth of the decoder that pretrains it in MAE's layout.
        has_class_token: whether the token of the image is a class token, and not only the mean of the patches.
        whole_images: whether it sees whole images only, so that masked patches are blanked in them.
        coupled: whether a step of training joins images of a batch, as batch norm does, or draws random numbers.
    """

    image_size: tuple[int, int]
    patch_size: int
    channels: int
    width: int
    depth: int = 0
    position_kind: Positions = "sincos"
    registers: int = 0
    decoder: tuple[int, int] = (96, 1)
    has_class_token: bool = True
    whole_images: bool = False
    coupled: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Tokens (B, 1+n, D); `keep` (B, n) names the patches that are seen, without it all are."""
        raise NotImplementedError

    def encode_masked(self, images: Tensor, keep: Tensor, masked: Tensor, mask_token: Tensor) -> Tensor:
        """Tokens (B, m, D) of the patches `masked` (B, m), each shown as the mask token (1, 1, D): BEiT's layout."""
        raise ConfigError(f"--layout beit is not for {type(self).__name__}: it takes no mask tokens")

    def encode_mixed(self, images: Tensor, keep: Tensor, mix_embed: Tensor) -> Tensor:
        """Tokens (B, 1+n, D) of the patches `keep` (B, n), images b and b + B/2 in one sequence: MixMAE's layout.

        The embedding (1, 1, D) marks the patches of the second. Both get the class token of the sequence.
        """
        raise ConfigError(f"--layout mixmae is not for {type(self).__name__}: it takes no mixed images")

    def tokens_of_layer(self, images: Tensor, layer: int) -> Tensor:
        """Tokens (B, 1+N, D) as layer 0 … depth gives them."""
        raise ConfigError(f"{type(self).__name__} gives its last tokens only, not those of layer {layer}")

    def load_published(self) -> None:
        """Take the weights that are published for it."""
        raise ConfigError(f"--init-from published is for networks of timm: {type(self).__name__} has none")

    def load_resized(self, old: Backbone) -> None:
        """Take the weights of a backbone like this one, made for images of another size."""
        if old.image_size != self.image_size:
            raise ConfigError(f"{type(self).__name__} was made for images of {old.image_size}, not {self.image_size}")
        self.load_state_dict(old.state_dict())


# Each builds from (rest, image_size, patch_size, channels, *, positions, drop_path); `vit.py` adds the ViT.
BACKBONES: dict[str, Callable[..., Backbone]] = {}
WITH_REGISTERS = ["vit", "tokens"]  # those that also take `registers`


def build_backbone(
    model: str,
    image_size: tuple[int, int],
    patch_size: int,
    channels: int = 3,
    *,
    positions: Positions = "sincos",
    drop_path: float = 0.0,
    registers: int = 0,
) -> Backbone:
    """The backbone that a text names: `NAME` or `NAME:REST` of `BACKBONES`, or a size of the ViT such as `micro`."""
    name, _, rest = model.partition(":")
    if name not in BACKBONES:
        name, rest = "vit", model
    if registers and name not in WITH_REGISTERS:
        raise ConfigError(f"--registers is for the ViT of this library, not {model}")
    more = {"registers": registers} if registers else {}
    return BACKBONES[name](rest, image_size, patch_size, channels, positions=positions, drop_path=drop_path, **more)


def decoder_shape(default: tuple[int, int], width: int = 0, depth: int = 0) -> tuple[int, int, int]:
    """Width, depth and heads of a decoder; 0 stands for the default."""
    if depth < 0 or width < 0 or width % DECODER_HEAD:
        raise ConfigError(
            f"a decoder of width {width} and depth {depth} cannot be: "
            f"its heads are {DECODER_HEAD} wide, and 0 stands for what the model has"
        )
    return width or default[0], depth or default[1], (width or default[0]) // DECODER_HEAD
