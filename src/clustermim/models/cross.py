"""Blocks of cross-attention: queries look at tokens, not at one another."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.models.vit import Block


class CrossAttention(nn.Module):
    """Queries (B, m, W) that ask tokens (B, T, W): (B, m, W)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        q = self.q(queries).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, heads, m, W/heads)
        kv = self.kv(tokens).unflatten(2, (2, self.heads, -1))  # (B, T, 2, heads, W/heads)
        k, v = (part.transpose(1, 2) for part in kv.unbind(2))  # (B, heads, T, W/heads) each
        x = F.scaled_dot_product_attention(q, k, v)  # (B, heads, m, W/heads)
        out: Tensor = self.proj(x.transpose(1, 2).flatten(2))  # (B, m, W)
        return out


class CrossBlock(Block):
    """A pre-norm block of cross-attention: queries (B, m, W) and normalised tokens (B, T, W) to (B, m, W)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.attn = CrossAttention(width, heads)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        x = x + self.attn(self.norm1(x), tokens)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out
