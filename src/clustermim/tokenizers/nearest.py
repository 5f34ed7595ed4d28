"""The nearest centre of each vector, exactly, whatever the batch it comes in."""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used
import torch
from torch import Tensor

from clustermim.threads import in_threads

NEAR = 4  # best centres that are compared again in float64, on devices that shall not wait
AGAIN = 4096  # pairs of vector and centre that are compared in float64 at a time
ON_GPU = 2**24  # numbers in a chunk on such a device


class Vectors(Protocol):
    """Rows (n, d) that are made when asked for: a tensor, or patches kept as bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


def chunks(vectors: Sized, width: int, k: int, numbers: int = 2**19) -> list[slice]:
    """Slices of rows that stay in the cache of a core with their scores, and are worth the start of a product."""
    rows = max(256, numbers // (width + k))
    return [slice(start, start + rows) for start in range(0, max(1, len(vectors)), rows)]


def sum_by_id(ids: Tensor, vectors: Tensor, k: int) -> Tensor:
    """Sums (k, d) of the vectors (n, d) of each id, in the order of the rows; torch's index_add_ is slower."""
    count = len(ids)
    parts = (np.ones(count, dtype=vectors.numpy().dtype), ids.numpy(), np.arange(count + 1))
    return torch.from_numpy(scipy.sparse.csc_array(parts, shape=(k, count)) @ vectors.numpy())


def nearest_center(vectors: Vectors, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (n,) of the nearest of `centers` (k, d) to each of `vectors` (n, d), and squared distances (n,).

    argmin_j ‖x − c_j‖² = argmin_j ‖c_j‖² − 2⟨x, c_j⟩ is one matrix product in float32. Rows whose two best scores
    are closer than its rounding error are decided again in float64, ties to the lower id. So the ids equal a
    brute-force search and do not depend on the batch. A GPU does so for the few best of every row, because asking which
    rows are close would make it wait.
    """
    device, centers = centers.device, centers.detach()
    centers = centers.cpu() if device.type == "mps" else centers  # mps has no float64
    middle = centers.mean(0)  # smaller numbers, smaller rounding error
    centers = centers - middle
    norms, factors = centers.square().sum(1), centers.t().mul(-2).contiguous()
    largest = norms.max().sqrt()

    def search(rows: slice) -> tuple[Tensor, Tensor]:
        x = vectors[rows].detach().to(middle.device) - middle
        scores = x.new_empty(len(x), len(norms))  # given as `out`, it stays float32 under autocast
        torch.mm(x, factors, out=scores).add_(norms)
        length = torch.linalg.vector_norm(x, dim=1)
        if x.device.type != "cpu":
            return nearest_of_few(x, centers, scores), (scores.amin(1) + length.square()).clamp_(min=0)
        ids, best = least(scores)
        limit = best + torch.finfo(torch.float32).eps * x.shape[1] * largest * (length + largest)
        close = (least_but(scores, ids) <= limit).nonzero()[:, 0]
        if len(close):
            near = (scores[close] <= limit[close, None]).scatter_(1, ids[close, None], True)
            ids[close] = _nearest_float64(x[close], centers, near)
        return ids, (best + length.square()).clamp_(min=0)

    if middle.device.type == "cpu":
        found = in_threads(search, chunks(vectors, *factors.shape))
    else:
        found = [search(rows) for rows in chunks(vectors, len(factors), len(norms), ON_GPU)]
    ids, distances = (torch.cat(parts) for parts in zip(*found, strict=True))
    return ids.to(device), distances.to(device)


def least(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Places (n,) of the least of scores (n, k), the first of equals, and the least themselves (n,)."""
    ids = torch.from_numpy(scores.numpy().argmin(1))  # vectorised, as torch's is not
    return ids, scores.gather(1, ids[:, None])[:, 0]


def least_but(scores: Tensor, ids: Tensor) -> Tensor:
    """The least of scores (n, k) apart from those at places ids (n,), which are overwritten."""
    return scores.scatter_(1, ids[:, None], torch.inf).amin(1)


def nearest_of_few(x: Tensor, centers: Tensor, scores: Tensor) -> Tensor:
    """Ids (n,) of the nearest centres, decided in float64 among the NEAR best by their scores (n, k)."""
    few = scores.topk(min(NEAR, scores.shape[1]), dim=1, largest=False).indices.sort(1).values  # (n, few)
    exact = (x.double()[:, None] - centers.double()[few]).square().sum(2)  # (n, few)
    return few.gather(1, exact.argmin(1, keepdim=True))[:, 0]


def _nearest_float64(x: Tensor, centers: Tensor, near: Tensor) -> Tensor:
    """Ids (n,) of the nearest centres to x (n, d), in float64, among those that are near, (n, k)."""
    exact = torch.full(near.shape, torch.inf, dtype=torch.float64)
    for pairs in torch.split(near.nonzero(), AGAIN):
        rows, columns = pairs.t()
        exact[rows, columns] = (x[rows].double() - centers[columns].double()).square_().sum(1)
    return exact.argmin(1)


def as_float64(tensor: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
