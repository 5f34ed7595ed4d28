"""The ViT encoder. Its parameters have timm's names and its state dict nothing else, so timm loads it strictly."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clustermim.errors import ConfigError, DataError, did_you_mean
from clustermim.models.backbones import BACKBONES, MOST_REGISTERS, Backbone, Positions
from clustermim.patches import grid_size, patchify, select, sincos_positions

MLP_RATIO = 4  # the hidden width of every MLP over the width of its tokens, as in all published ViTs
NORM_EPS = 1e-6  # timm's and MAE's; torch's default of 1e-5 would give other features


class Size(NamedTuple):
    """The shape of an encoder, and width and depth of the decoder that pretrains it."""

    width: int
    depth: int
    heads: int
    decoder: tuple[int, int]


# The encoders from tiny on are the published ones.
SIZES: dict[str, Size] = {
    "micro": Size(128, 4, 4, (96, 1)),  # learns CIFAR-10 on a laptop
    "tiny": Size(192, 12, 3, (256, 8)),
    "small": Size(384, 12, 6, (256, 8)),
    "base": Size(768, 12, 12, (512, 8)),
    "large": Size(1024, 24, 16, (512, 8)),
    "huge": Size(1280, 32, 16, (512, 8)),
}


def find_size(name: str) -> Size:
    """The size of that name."""
    if name not in SIZES:
        raise ConfigError(f"there is no model {name!r}{did_you_mean(name, [*SIZES, *BACKBONES])}")
    return SIZES[name]


class PatchEmbed(nn.Module):
    """Images (B, C, H, W) to patch embeddings (B, n, D), of the patches `keep` (B, n) or of all."""

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch_size, patch_size)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        patches = patchify(images, self.proj.kernel_size[0])  # (B, N, p·p·C)
        if keep is not None:
            # before the product: a convolution would embed the hidden patches as well
            patches = select(patches, keep)  # (B, n, p·p·C)
        weight = self.proj.weight.permute(0, 2, 3, 1).flatten(1)  # (D, p·p·C), in the order of patchify
        return F.linear(patches, weight, self.proj.bias)  # (B, n, D)


class Attention(nn.Module):
    """Self-attention of tokens (B, T, D); with `last`, only that many tokens at the end ask: (B, last, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, last: int | None = None) -> Tensor:
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))  # (B, T, 3, heads, D/heads)
        # unbound before transposed: backward then writes the gradient of qkv once, where it belongs
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # (B, heads, T, D/heads) each
        if last is not None:
            q = q[:, :, q.shape[2] - last :]  # (B, heads, last, D/heads)
        x = F.scaled_dot_product_attention(q, k, v)  # (B, heads, T or last, D/heads)
        out: Tensor = self.proj(x.transpose(1, 2).flatten(2))  # (B, T or last, D)
        return out


class Block(nn.Module):
    """A pre-norm transformer block: (B, T, D) to (B, T, D), or with `last` to (B, last, D).

    In training a `checkpointed` one keeps its input only and computes the rest again for the gradient.
    """

    checkpointed = False

    def __init__(self, width: int, heads: int, drop_path: float = 0.0) -> None:
        super().__init__()
        if min(width, heads) < 1 or width % heads:
            raise ConfigError(f"a width of {width} does not divide into {heads} attention heads")
        self.norm1 = nn.LayerNorm(width, NORM_EPS)
        self.attn: nn.Module = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, NORM_EPS)
        hidden = MLP_RATIO * width
        layers = {"fc1": nn.Linear(width, hidden), "act": nn.GELU(), "fc2": nn.Linear(hidden, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))  # on each token by itself
        self.drop_path = drop_path

    def forward(self, x: Tensor, last: int | None = None) -> Tensor:
        branch = self.attn(self.norm1(x), last)  # (B, T or last, D)
        if last is not None:
            x = x[:, x.shape[1] - last :]  # (B, last, D)
        x = x + self.drop(branch)
        return x + self.drop(self.mlp(self.norm2(x)))

    def drop(self, branch: Tensor) -> Tensor:
        """In training, zero the branch (B, T, D) of some images and enlarge the others', so that the mean stays."""
        if not self.training or self.drop_path == 0:
            return branch
        stays = torch.rand(len(branch), 1, 1, device=branch.device) >= self.drop_path
        return branch * (stays / (1 - self.drop_path)).to(branch.dtype)


def run_blocks(blocks: nn.ModuleList, x: Tensor, last: int | None = None) -> Tensor:
    """Tokens (B, T, D) through all blocks; with `last`, only that many tokens at the end come out: (B, last, D).

    They attend to all tokens all the same; what the last block would do for the others alone is left out.
    """
    for place, block in enumerate(blocks, start=1):
        given = x, last if place == len(blocks) else None
        again = block.checkpointed and block.training
        x = checkpoint(block, *given, use_reentrant=False) if again else block(*given)
    return x


class ViT(Backbone):
    """The encoder: images to a class token and patch tokens.

    `image_size` is (height, width). `drop_path` is the rate of the last block; it grows linearly from 0 at the first.
    `registers` are learned tokens without a position, after the class token; what becomes of them is left out.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        channels: int = 3,
        *,
        width: int,
        depth: int,
        heads: int,
        positions: Positions = "sincos",
        drop_path: float = 0.0,
        registers: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= registers <= MOST_REGISTERS:
            raise ConfigError(f"--registers {registers} must be 0 … {MOST_REGISTERS}")
        if min(depth, channels) < 1 or not 0 <= drop_path < 1:
            given = f"{depth}, {channels} and {drop_path}"
            raise ConfigError(f"an encoder needs depth ≥ 1, channels ≥ 1 and 0 ≤ drop_path < 1, not {given}")
        self.image_size, self.patch_size, self.channels, self.width = image_size, patch_size, channels, width
        self.depth, self.heads, self.position_kind, self.registers = depth, heads, positions, registers
        grid_size(*image_size, patch_size)  # refuses what does not divide
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = make_positions(self.grid, width, positions)  # (1, 1+N, D)
        self.patch_embed: nn.Module = PatchEmbed(channels, width, patch_size)
        self.blocks = nn.ModuleList(Block(width, heads, rate) for rate in rates)
        self.norm = nn.LayerNorm(width, NORM_EPS)
        self.apply(initialise)
        nn.init.normal_(self.cls_token, std=0.02)
        if registers:  # last, so that one without has the same weights as ever
            self.reg_token = nn.Parameter(nn.init.normal_(torch.empty(1, registers, width), std=0.02))

    @classmethod
    def of_size(cls, name: str, *images: Any, **options: Any) -> ViT:
        """The encoder of a named size; everything else is as for the class."""
        size = find_size(name)
        vit = cls(*images, width=size.width, depth=size.depth, heads=size.heads, **options)
        vit.decoder = size.decoder
        return vit

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Normalised images (B, C, H, W) to tokens (B, 1+n, D), the class token first.

        `keep` (B, n) names the patches that are seen, row-major from 0; without it all are, and nothing is masked.
        """
        return self.encode(self.embed(images, keep))  # (B, 1+n, D)

    def embed(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Patch embeddings with their positions, without the class token: (B, n, D)."""
        if images.shape[1:] != (self.channels, *self.image_size):
            given, wanted = "×".join(map(str, images.shape[1:])), (self.channels, *self.image_size)
            raise DataError(f"the images are {given}, and the encoder was made for {'×'.join(map(str, wanted))}")
        patches: Tensor = self.patch_embed(images, keep)  # (B, n, D)
        return patches + self.positions(keep)

    def positions(self, index: Tensor | None = None) -> Tensor:
        """The positions of the patches `index` (B, n), or of all: (B, n, D) or (1, N, D)."""
        if index is None:
            return self.pos_embed[:, 1:]  # (1, N, D)
        return F.embedding(index, self.pos_embed[0, 1:])  # (B, n, D)

    def encode(self, patches: Tensor, last: int | None = None) -> Tensor:
        """Embedded patches (B, n, D) to tokens (B, 1+n, D), the class token first; with `last`, to the last ones."""
        x = run_blocks(self.blocks, self.prepend_tokens(patches), last)  # (B, 1+R+n or last, D)
        out: Tensor = self.norm(x if last is not None else self.drop_registers(x))
        return out

    def encode_masked(self, images: Tensor, keep: Tensor, masked: Tensor, mask_token: Tensor) -> Tensor:
        """Tokens (B, m, D) of the patches `masked` (B, m), which the mask token (1, 1, D) stands in for."""
        visible = self.embed(images, keep)  # (B, n, D)
        hidden = mask_token + self.positions(masked)  # (B, m, D)
        return self.encode(torch.cat([visible, hidden], dim=1), last=masked.shape[1])  # (B, m, D)

    def encode_mixed(self, images: Tensor, keep: Tensor, mix_embed: Tensor) -> Tensor:
        """Tokens (B, 1+n, D) of the patches `keep` (B, n); images b and b + B/2 are encoded as one sequence."""
        first, second = self.embed(images, keep).chunk(2)  # (B/2, n, D) each
        x = self.encode(torch.cat([first, second + mix_embed], dim=1))  # (B/2, 1+2n, D)
        image, first, second = torch.split(x, [1, keep.shape[1], keep.shape[1]], dim=1)
        return torch.cat([torch.cat([image, first], dim=1), torch.cat([image, second], dim=1)])  # (B, 1+n, D)

    def prepend_tokens(self, patches: Tensor) -> Tensor:
        """What the first block receives: class token and R registers before patches (B, n, D), (B, 1+R+n, D)."""
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(patches), -1, -1)  # (B, 1, D)
        more = [self.reg_token.expand(len(patches), -1, -1)] if self.registers else []  # (B, R, D)
        return torch.cat([first, *more, patches], dim=1)

    def drop_registers(self, tokens: Tensor) -> Tensor:
        """Tokens (B, 1+R+n, D) without the registers: (B, 1+n, D)."""
        if not self.registers:
            return tokens
        return torch.cat([tokens[:, :1], tokens[:, 1 + self.registers :]], dim=1)

    def tokens_of_layer(self, images: Tensor, layer: int) -> Tensor:
        """Tokens (B, 1+N, D) as block `layer` gives them, without the last norm; 0: what the first block receives."""
        return self.drop_registers(run_blocks(self.blocks[:layer], self.prepend_tokens(self.embed(images))))

    def load_resized(self, old: Backbone) -> None:
        """Take the weights of a ViT like this one; on another grid of patches its positions are interpolated."""
        assert isinstance(old, ViT)
        positions = resize_positions(old.pos_embed.detach(), old.grid, self.grid)  # (1, 1+N', D)
        self.load_state_dict({**old.state_dict(), "pos_embed": positions})


class TokenViT(ViT):
    """A ViT that reads the ids (B, N) of a tokenizer: an embedding stands in place of the patch projection."""

    def __init__(self, *images: Any, vocab_size: int, **options: Any) -> None:
        super().__init__(*images, **options)
        embedding = nn.Embedding(vocab_size, self.width)
        nn.init.normal_(embedding.weight, std=0.02)
        self.patch_embed = embedding

    @classmethod
    def of_size(cls, name: str, *images: Any, **options: Any) -> ViT:
        """The encoder of `VOCAB_SIZE:SIZE`, as 512:micro."""
        count, _, size = name.partition(":")
        if not count.isdecimal():
            raise ConfigError(f"tokens:{name} does not say how many tokens there are, as tokens:512:micro does")
        return super().of_size(size, *images, vocab_size=int(count), **options)

    def embed(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Embeddings (B, n, D) of ids (B, N), with their positions."""
        if images.ndim != 2:
            raise ConfigError(
                "this encoder reads tokens, not images: it can be probed, not fine-tuned or exported, and is no teacher"
            )
        tokens: Tensor = self.patch_embed(images if keep is None else images.gather(1, keep))  # (B, n, D)
        return tokens + self.positions(keep)

    def encode_shown(self, ids: Tensor, keep: Tensor, shown: Tensor, mask_token: Tensor) -> Tensor:
        """Tokens (B, 1+n, D) of `keep` (B, n); those that are not `shown` (B, n) enter as the mask token (1, 1, D)."""
        return self.encode(torch.where(shown[..., None], self.embed(ids, keep), mask_token + self.positions(keep)))


BACKBONES |= {"vit": ViT.of_size, "tokens": TokenViT.of_size}


def make_positions(grid: tuple[int, int], width: int, kind: Positions = "sincos") -> nn.Parameter:
    """Positions (1, 1+N, D), the class token's first: fixed ones without a gradient, or learned ones."""
    if kind not in get_args(Positions):
        raise ConfigError(f"positions are {' or '.join(get_args(Positions))}, not {kind!r}")
    if kind == "learned":
        return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1 + grid[0] * grid[1], width), std=0.02))
    if torch.get_default_device().type == "meta":  # shapes alone are asked for
        return nn.Parameter(torch.empty(1, 1 + grid[0] * grid[1], width), requires_grad=False)
    patches = sincos_positions(grid, width)  # (N, D)
    # A parameter and no buffer, because that is what timm has, and an optimizer skips what needs no gradient.
    return nn.Parameter(F.pad(patches, (0, 0, 1, 0))[None], requires_grad=False)


def resize_positions(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Positions (1, 1+N, D) of one grid, interpolated for another: (1, 1+N', D); the class token keeps its own."""
    if old == new:
        return positions
    patches = positions[:, 1:].transpose(1, 2).reshape(1, -1, *old)  # (1, D, rows, columns)
    # antialias, as timm does: a smaller grid would otherwise see every other position only
    patches = F.interpolate(patches, new, mode="bicubic", antialias=True)  # (1, D, rows', columns')
    return torch.cat([positions[:, :1], patches.flatten(2).transpose(1, 2)], dim=1)  # (1, 1+N', D)


def initialise(module: nn.Module) -> None:
    """Xavier weights and zero biases, as MAE starts; the patch projection counts as the matrix that it is."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight.view(len(module.weight), -1))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
