"""Sinkhorn–Knopp: assignments that use all prototypes alike, what they are like, and when they have collapsed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from clustermim.distributed import all_reduce_sum, world_size

COLLAPSED = 0.1  # of the prototypes that could be used


def in_float32(device: torch.device) -> AbstractContextManager[Any]:
    """No product inside is computed in bf16: exponentials enlarge what it rounds."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


@torch.no_grad()
def sinkhorn(similarity: Tensor, temperature: float, iterations: int, queue: Tensor | None = None) -> Tensor:
    """Assignments (P, n, K) of cosine similarities (P, n, K), for each of P groups of patches by itself.

    Of exp(similarity / temperature) all columns are brought to their fair share, and then all rows to 1, so many
    times. A column has the patches of all ranks and those of the queue (P, q, K), which is the same on every rank.
    """
    # less 1, the largest there can be, which changes no column: nothing overflows
    kernels = [((part - 1) / temperature).exp_() for part in (similarity, queue) if part is not None]
    rows = [kernel.new_ones(kernel.shape[0], 1, kernel.shape[1]) for kernel in kernels]  # (P, 1, n)
    patches = similarity.shape[1] * world_size() + (0 if queue is None else queue.shape[1])
    for _ in range(iterations):
        sums, *others = [row @ kernel for row, kernel in zip(rows, kernels, strict=True)]  # (P, 1, K)
        columns = patches / similarity.shape[2] / sum(others, all_reduce_sum(sums))  # (P, 1, K)
        rows = [(columns @ kernel.transpose(1, 2)).reciprocal() for kernel in kernels]
    return kernels[0].mul_(rows[0].transpose(1, 2)).mul_(columns)


@torch.no_grad()
def use_of(values: Tensor) -> dict[str, Tensor]:
    """Of assignments (N, B, K) of all ranks: how many prototypes are somebody's first, and how much patches are theirs.

    used: the share of prototypes that are the first of some patch.
    perplexity: the exponential of the entropy of the first prototypes of all patches.
    confidence: the mean of a patch's largest assignment; 1/K where they say nothing.
    """
    largest, first = values.max(2)
    counts = largest.new_zeros(values.shape[2]).scatter_add_(0, first.flatten(), torch.ones_like(largest).flatten())
    counts = all_reduce_sum(counts)
    shares = counts / counts.sum()
    return {
        "used": (counts > 0).float().mean(),
        "perplexity": torch.special.entr(shares).sum().exp(),
        "confidence": all_reduce_sum(largest.mean()) / world_size(),
    }


def collapse(used: float, confidence: float, prototypes: int, patches: int) -> str | None:
    """What is wrong with assignments, if anything, and what to try."""
    remedy = "start from an encoder with --init-from, raise --teacher-momentum, or lower --base-lr"
    if used < COLLAPSED * min(1.0, patches / prototypes):
        return f"the assignments have collapsed to {used * prototypes:.0f} of {prototypes} prototypes: {remedy}"
    if confidence < 2 / prototypes:
        return f"the assignments are the same for all patches: lower --teacher-temperature, {remedy}"
    return None
