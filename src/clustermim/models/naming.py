"""The encoder's weights under the names of transformers' ViT. timm's names are our own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

# The names on the Hub, which every version of transformers reads and writes; inside, version 5 has shorter ones.
OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
BLOCK = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
QKV = tuple(f"attention.attention.{part}" for part in ("query", "key", "value"))


def to_transformers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT under transformers' names; the matrix of queries, keys and values becomes three."""
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name in OUTSIDE:  # a parameter of the ViT itself
            result[OUTSIDE[name]] = tensor
            continue
        part, _, kind = name.rpartition(".")  # kind: weight or bias
        if part.startswith("blocks."):
            _, number, inner = part.split(".", 2)
            names = QKV if inner == "attn.qkv" else (BLOCK[inner],)
            names = tuple(f"encoder.layer.{number}.{theirs}" for theirs in names)
        else:
            names = (OUTSIDE[part],)
        pieces = tensor.chunk(len(names))  # of (3·D, D) or (3·D,): queries, keys and values, in this order
        result |= {f"{theirs}.{kind}": piece for theirs, piece in zip(names, pieces, strict=True)}
    return result
