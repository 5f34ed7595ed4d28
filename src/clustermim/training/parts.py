"""A step on a CPU in parts of its batch, one for each thread.

Threads that share every operation wait for each other after it, for long when another process is busy. Here each
computes a part of the images from input to gradient, and they meet once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clustermim.threads import in_threads

LEAST_IMAGES = 8  # of a part: products of fewer are too small to be fast
MOST_BYTES = 2**30  # of the gradients of all parts, which are in memory at once

Share = tuple[float, Any]  # of the mean loss, and the part of the batch that it is the loss of


def count_parts(weights: Iterable[nn.Parameter], images: int) -> int:
    """In how many parts a batch of so many images is computed best: one for each thread, or 1."""
    threads, size = torch.get_num_threads(), sum(weight.nbytes for weight in weights)
    return threads if images >= LEAST_IMAGES * threads and threads * size <= MOST_BYTES else 1


def backward_in_parts(
    loss_of: Callable[[Any], dict[str, Tensor]], shares: Sequence[Share], weights: Sequence[nn.Parameter], scale: float
) -> dict[str, Tensor]:
    """Add the gradients of `scale` · loss to those of the weights, in the order of the parts; the values of the batch.

    `loss_of(part)` gives {"loss": mean over the part, …}; what is random about it is in the part.
    """

    def compute(given: Share) -> tuple[dict[str, Tensor], tuple[Tensor | None, ...]]:
        share, values = given[0], loss_of(given[1])
        gradients = torch.autograd.grad(values["loss"] * (share * scale), weights, allow_unused=True)
        return {name: share * value.detach() for name, value in values.items()}, gradients

    found = in_threads(compute, shares)
    for _, gradients in found:
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:  # contiguous, as a fused optimizer takes it to be
                weight.grad = gradient.contiguous() if weight.grad is None else weight.grad.add_(gradient)
    return {name: torch.stack([values[name] for values, _ in found]).sum() for name in found[0][0]}
