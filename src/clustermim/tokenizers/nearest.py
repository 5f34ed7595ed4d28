"""The nearest centre of each vector, exactly, whatever the batch it comes in."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch import Tensor

NEAR = 4  # best centres that are compared again in float64, on devices that shall not wait


def chunks(vectors: Sized, width: int, k: int) -> Iterator[slice]:
    """Slices of rows that stay in the cache with their scores, and are worth the start of the threads."""
    rows = min(16_384, max(1024, 2**21 // (width + k)))
    return (slice(start, start + rows) for start in range(0, len(vectors), rows))


def nearest_center(vectors: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (n,) of the nearest of `centers` (k, d) to each of `vectors` (n, d), and squared distances (n,).

    argmin_j ‖x − c_j‖² = argmin_j ‖c_j‖² − 2⟨x, c_j⟩ is one matrix product in float32. Rows whose two best scores
    are closer than its rounding error are decided again in float64, ties to the lower id. So the ids equal a
    brute-force search and do not depend on the batch. A GPU does so for the few best of every row, because asking which
    rows are close would make it wait.
    """
    middle = centers.mean(0)  # smaller numbers, smaller rounding error
    centers = centers - middle
    norms = centers.square().sum(1)
    largest = norms.max().sqrt()
    ids = torch.empty(len(vectors), dtype=torch.long, device=vectors.device)
    distances = torch.empty(len(vectors), dtype=torch.float32, device=vectors.device)
    for rows in chunks(vectors, vectors.shape[1], len(centers)):
        x = vectors[rows] - middle
        scores = torch.addmm(norms[None], x, centers.t(), alpha=-2)  # (chunk, k)
        best, ids[rows] = scores.min(1)
        square = x.square().sum(1)
        distances[rows] = (best + square).clamp_(min=0)
        if x.device.type not in ("cpu", "mps"):
            ids[rows] = nearest_of_few(x, centers, scores)
            continue
        error = torch.finfo(torch.float32).eps * x.shape[1] * largest * (square.sqrt() + largest)
        close = (scores <= (best + error)[:, None]).sum(1) > 1
        if bool(close.any()):
            ids[rows][close] = _nearest_float64(x[close], centers)
    return ids, distances


def nearest_of_few(x: Tensor, centers: Tensor, scores: Tensor) -> Tensor:
    """Ids (n,) of the nearest centres, decided in float64 among the NEAR best by their scores (n, k)."""
    few = scores.topk(min(NEAR, scores.shape[1]), dim=1, largest=False).indices.sort(1).values  # (n, few)
    exact = (x.double()[:, None] - centers.double()[few]).square().sum(2)  # (n, few)
    return few.gather(1, exact.argmin(1, keepdim=True))[:, 0]


def _nearest_float64(x: Tensor, centers: Tensor) -> Tensor:
    c = as_float64(centers)
    scores = torch.addmm(c.square().sum(1)[None], as_float64(x), c.t(), alpha=-2)
    return scores.argmin(1).to(x.device)


def as_float64(tensor: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
