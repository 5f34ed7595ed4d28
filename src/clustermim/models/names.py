"""The names that timm and transformers have for the weights of a ViT, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# Parts of names on the Hub, which every version of transformers reads and writes; inside, version 5 has shorter ones.
NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "blocks": "encoder.layer",
    "norm.": "layernorm.",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
# The same of Dinov2WithRegistersModel, which transformers has for a ViT with registers.
REGISTER_NAMES = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "blocks": "encoder.layer",
    "norm.": "layernorm.",
    "attn.proj": "attention.output.dense",
}
OURS, THEIRS = "attn.qkv", "attention.attention"
QKV = ("query", "key", "value")


def to_timm(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT as timm has it, where registers have positions too: here they are zeros."""
    result = dict(weights)
    if "reg_token" in weights:
        first, others = weights["pos_embed"].tensor_split([1], dim=1)  # (1, 1, D), (1, N, D)
        result["pos_embed"] = torch.cat([first, torch.zeros_like(weights["reg_token"]), others], dim=1)
    return result


def to_dinov2(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT with registers as transformers' DINOv2: with scales of 1, and a mask token of zeros."""
    result = to_transformers(weights, REGISTER_NAMES)
    ones = torch.ones(weights["cls_token"].shape[2])
    for block in {name.split(".")[1] for name in weights if name.startswith("blocks.")}:
        result |= {f"encoder.layer.{block}.layer_scale{place}.lambda1": ones.clone() for place in (1, 2)}
    return {**result, "embeddings.mask_token": torch.zeros(1, len(ones))}


def to_transformers(weights: Mapping[str, Tensor], names: Mapping[str, str] = NAMES) -> dict[str, Tensor]:
    """The state dict of a ViT under transformers' names; the matrix of queries, keys and values becomes three."""
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        theirs = name
        for ours, replacement in names.items():
            theirs = theirs.replace(ours, replacement)
        if OURS in theirs:
            pieces = zip(QKV, tensor.chunk(3), strict=True)  # of (3·D, D) or (3·D,), in this order
            result |= {theirs.replace(OURS, f"{THEIRS}.{part}"): piece for part, piece in pieces}
        else:
            result[theirs] = tensor
    return result


def from_export(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT from the names of timm or transformers, as an export has them, to ours."""
    if NAMES["cls_token"] in weights:
        return _from_transformers(weights)
    result = dict(weights)
    if "reg_token" in weights:  # whose positions timm has after that of the class token
        count = weights["reg_token"].shape[1]
        first, _, others = weights["pos_embed"].tensor_split([1, 1 + count], dim=1)
        result["pos_embed"] = torch.cat([first, others], dim=1)
    return result


def _from_transformers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = REGISTER_NAMES if REGISTER_NAMES["reg_token"] in weights else NAMES
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        ours = name
        for replacement, theirs in names.items():
            ours = ours.replace(theirs, replacement)
        if f"{THEIRS}.query" in ours:
            parts = [weights[name.replace("query", part)] for part in QKV]
            result[ours.replace(f"{THEIRS}.query", OURS)] = torch.cat(parts)
        elif not any(part in ours for part in (THEIRS, "layer_scale", "mask_token")):  # which ours has not
            result[ours] = tensor
    return result
