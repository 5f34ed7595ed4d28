"""A ViT and MAE's decoder in plain loops, from their weights alone: micro, images of 16×16, patches of 4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-6).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def block(x: Tensor, weights: Weights, name: str, heads: int, allowed: Tensor) -> Tensor:
    """A pre-norm block on tokens (T, D), head by head; `allowed` (T, T) says who may attend to whom."""
    q, k, v = linear(norm(x, weights, f"{name}.norm1"), weights, f"{name}.attn.qkv").chunk(3, dim=1)
    size, found = x.shape[1] // heads, []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = (q[:, part] @ k[:, part].T / math.sqrt(size)).masked_fill(~allowed, -torch.inf)
        found.append(scores.softmax(1) @ v[:, part])
    x = x + linear(torch.cat(found, dim=1), weights, f"{name}.attn.proj")
    hidden = linear(norm(x, weights, f"{name}.norm2"), weights, f"{name}.mlp.fc1")
    hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return x + linear(hidden, weights, f"{name}.mlp.fc2")


def patch_of(image: Tensor, place: int) -> Tensor:
    """Patch (C, 4, 4) of an image (C, 16, 16)."""
    row, column = divmod(place, 4)
    return image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]


def embedded(image: Tensor, place: int, weights: Weights) -> Tensor:
    """The embedding (D,) of a patch, with its position."""
    kernel = weights["encoder.patch_embed.proj.weight"].flatten(1)
    bias, position = weights["encoder.patch_embed.proj.bias"], weights["encoder.pos_embed"][0, 1 + place]
    return kernel @ patch_of(image, place).flatten() + bias + position


def decoded(image_token: Tensor, visible: dict[int, Tensor], weights: Weights) -> dict[int, Tensor]:
    """Predictions by place, from encoded tokens by place: mask tokens in place in the row-major sequence."""
    rows = [linear(image_token, weights, "decoder_embed")]
    for place in range(16):
        seen = place in visible
        rows.append(linear(visible[place], weights, "decoder_embed") if seen else weights["mask_token"][0, 0])
    x = torch.stack(rows) + weights["decoder_pos_embed"][0]
    x = block(x, weights, "decoder_blocks.0", 3, torch.ones(17, 17, dtype=torch.bool))
    x = linear(norm(x, weights, "decoder_norm"), weights, "decoder_pred")
    return {place: x[1 + place] for place in range(16) if place not in visible}


def encoded(tokens: list[Tensor], weights: Weights, allowed: Tensor | None = None) -> Tensor:
    """Tokens (T, D) after the last norm; `allowed` (T, T) says who may attend to whom, all by default."""
    x = torch.stack(tokens)
    allowed = torch.ones(len(x), len(x), dtype=torch.bool) if allowed is None else allowed
    for layer in range(4):
        x = block(x, weights, f"encoder.blocks.{layer}", 4, allowed)
    return norm(x, weights, "encoder.norm")
