"""The names that transformers has for the weights of a ViT, and back."""

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
OURS, THEIRS = "attn.qkv", "attention.attention"
QKV = ("query", "key", "value")


def to_transformers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT under transformers' names; the matrix of queries, keys and values becomes three."""
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        theirs = name
        for ours, replacement in NAMES.items():
            theirs = theirs.replace(ours, replacement)
        if OURS in theirs:
            pieces = zip(QKV, tensor.chunk(3), strict=True)  # of (3·D, D) or (3·D,), in this order
            result |= {theirs.replace(OURS, f"{THEIRS}.{part}"): piece for part, piece in pieces}
        else:
            result[theirs] = tensor
    return result


def from_transformers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT from transformers' names to ours; one that has ours already is as it was."""
    if NAMES["cls_token"] not in weights:
        return dict(weights)
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        ours = name
        for replacement, theirs in NAMES.items():
            ours = ours.replace(theirs, replacement)
        if f"{THEIRS}.query" in ours:
            parts = [weights[name.replace("query", part)] for part in QKV]
            result[ours.replace(f"{THEIRS}.query", OURS)] = torch.cat(parts)
        elif THEIRS not in ours:
            result[ours] = tensor
    return result
