"""VQ-KD, the tokenizer of BEiT v2: its networks and loss, and the published ones as their authors save them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from clustermim.errors import TokenizerError
from clustermim.files import user_path
from clustermim.models.vit import ViT, initialise, resize_positions, run_blocks
from clustermim.patches import grid_size
from clustermim.reading import open_regular
from clustermim.teachers.base import to_map

HEAD = 32  # the width of a head, as in all small encoders here
PUBLISHED_HEAD = 64  # the same in the published ones
CONVERT = "convert the published .pth as docs/tokenizers.md shows, and name it: vqkd:FILE.safetensors"
TASK = ("encode_task_layer.0", "encode_task_layer.2")  # the two layers before the codebook


class PatchTransformer(nn.Module):
    """Images (B, C, H, W) to vectors (B, dim, h, w) of their patches: a ViT, then two layers with a tanh between.

    The encoder of VQ-KD is one. So is its decoder, whose images are the vectors of tokens, with patches of 1.

    Args:
        channels: C of the images.
        image_size: height and width it is made for; positions are interpolated for others.
        patch_size: side of a patch.
        width: of the ViT.
        depth: blocks of the ViT.
        dim: of the vectors.
        head: width of an attention head, where it divides the width.
    """

    mean: Tensor  # (C, 1, 1), of the images, which are normalised inside
    std: Tensor  # (C, 1, 1)

    def __init__(
        self,
        channels: int,
        image_size: tuple[int, int],
        patch_size: int,
        width: int,
        depth: int,
        dim: int,
        head: int = HEAD,
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))
        heads = math.gcd(width, max(1, width // head))
        shape: dict[str, Any] = {"width": width, "depth": depth, "heads": heads, "positions": "learned"}
        self.vit = ViT(image_size, patch_size, channels, **shape)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, dim)).apply(initialise)

    def forward(self, images: Tensor) -> Tensor:
        grid = grid_size(images.shape[2], images.shape[3], self.vit.patch_size)
        patches = self.vit.patch_embed((images - self.mean) / self.std)  # (B, N, width)
        positions = resize_positions(self.vit.pos_embed, self.vit.grid, grid)  # (1, 1+N, width)
        first = self.vit.cls_token.expand(len(patches), -1, -1)  # (B, 1, width)
        x = run_blocks(self.vit.blocks, torch.cat([first, patches], dim=1) + positions)  # (B, 1+N, width)
        return to_map(self.head(self.vit.norm(x)[:, 1:]), grid)  # (B, dim, h, w)


def distillation_loss(predicted: Tensor, features: Tensor) -> Tensor:
    """1 − cos of what is predicted, (B, D, h, w), and a teacher's features (B, N, D), mean over all patches."""
    found = predicted.flatten(2).transpose(1, 2)  # (B, N, D)
    return 1 - F.cosine_similarity(found, features, dim=-1).mean()


class PublishedVQKD(nn.Module):
    """The encoder and the codebook of a published VQ-KD: a square view (B, C, H, W) in [0, 1] to ids (B, h, w)."""

    codebook: Tensor  # (vocab_size, code_dim)

    def __init__(
        self, vocab_size: int, code_dim: int, channels: int, side: int, patch_size: int, width: int, depth: int
    ) -> None:
        super().__init__()
        if width % PUBLISHED_HEAD:
            raise ValueError(f"a width of {width} does not divide into heads of {PUBLISHED_HEAD}")
        size = side * patch_size, side * patch_size
        self.encoder = PatchTransformer(channels, size, patch_size, width, depth, code_dim, PUBLISHED_HEAD)
        self.register_buffer("codebook", torch.zeros(vocab_size, code_dim))

    def forward(self, view: Tensor) -> Tensor:
        x = F.normalize(self.encoder(view).movedim(1, -1), dim=-1)  # (B, h, w, code_dim)
        return (2 * x @ self.codebook.t() - self.codebook.square().sum(1)).argmax(-1)  # the nearest


def build_vqkd(network: Any, config: dict[str, Any]) -> tuple[Any, int, int, int]:
    """The network of these sizes, the size of its codebook, its channels, and pixels of its view to an id."""
    model = network(**config)
    return model, config["vocab_size"], config["channels"], config["patch_size"]


def read_vqkd(source: str, name: str) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """The file that a source names, the sizes of its network, and its weights by the names they have here."""
    path = user_path(name)
    if not path.is_file():
        raise TokenizerError(f"{source}: there is no file {path}: {CONVERT}")
    if path.suffix != ".safetensors":
        raise TokenizerError(f"{path} is not a safetensors file, and pickled weights are never read: {CONVERT}")
    try:
        open_regular(path).close()
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TokenizerError(f"{path} is damaged or not a safetensors file ({error}): copy it anew") from error
    try:
        return path, find_sizes(weights), rename(weights)
    except (KeyError, ValueError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TokenizerError(f"{path} does not hold a VQ-KD: {problem}; {CONVERT}") from error


def find_sizes(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The sizes of a published network, from the shapes of its weights; ValueError where they have others."""
    codes, width, code_dim = (weights[f"{name}.weight"] for name in ("quantize.embedding", *TASK))
    patches, positions = weights["encoder.patch_embed.proj.weight"], weights["encoder.pos_embed"]
    if (codes.ndim, patches.ndim, positions.ndim, width.ndim, code_dim.ndim) != (2, 4, 3, 2, 2):
        raise ValueError("its weights have other shapes")
    side = math.isqrt(positions.shape[1] - 1)
    if side * side != positions.shape[1] - 1 or not side:
        raise ValueError(f"its {positions.shape[1] - 1} positions do not form a square")
    blocks = {name.split(".")[2] for name in weights if name.startswith("encoder.blocks.")}
    return {
        "vocab_size": len(codes), "code_dim": len(code_dim), "channels": patches.shape[1], "side": side,
        "patch_size": patches.shape[2], "width": len(width), "depth": len(blocks),
    }  # fmt: skip


def rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names that `PublishedVQKD` has; those of the decoder and of the training are left out."""
    channels = weights["encoder.patch_embed.proj.weight"].shape[1]
    half = torch.full((channels, 1, 1), 0.5)  # (x − ½) / ½ is its view in [−1, 1]
    found = {"codebook": weights["quantize.embedding.weight"], "encoder.mean": half, "encoder.std": half.clone()}
    for name, tensor in weights.items():
        part, _, rest = name.partition(".")
        if part == "encode_task_layer":
            found[f"encoder.head.{rest}"] = tensor
        elif part == "encoder" and rest.endswith(".attn.q_bias"):  # keys have none
            value = weights[name.replace("q_bias", "v_bias")]
            found[f"encoder.vit.{rest.replace('q_bias', 'qkv.bias')}"] = torch.cat(
                [tensor, torch.zeros_like(tensor), value]
            )
        elif part == "encoder" and not rest.endswith(".attn.v_bias"):
            found[f"encoder.vit.{rest.replace('fc_norm', 'norm')}"] = tensor
    return found
