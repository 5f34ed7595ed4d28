"""The nearest centre of each vector, exactly, whatever the batch it comes in."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Protocol

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used
import torch
from numpy.typing import NDArray
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


def score_chunks(
    vectors: Vectors, centers: Tensor, use: Callable[[Tensor, Tensor], tuple[Tensor, ...]], middle: Tensor | None = None
) -> list[Tensor]:
    """What `use(x, scores)` gives of every chunk, joined, of scores ‖c‖² − 2⟨x, c⟩ (n, k) with centres c (k, d).

    Vectors x (n, d) are without `middle`, where there is one. Both are in memory that other chunks use again: what is
    freed must be fetched from the system anew, page by page.
    """
    norms, factors = centers.square().sum(1), centers.t().mul(-2).contiguous()
    parts, spare = chunks(vectors, *factors.shape), list[tuple[Tensor, Tensor]]()
    most = parts[0].stop

    def work(rows: slice) -> tuple[Tensor, ...]:
        x = vectors[rows]
        try:  # to look first would leave time for another thread to take it
            memory = spare.pop()
        except IndexError:
            memory = torch.empty(most, len(factors)), torch.empty(most, len(norms))
        if middle is not None:
            x = torch.sub(x.detach(), middle, out=memory[0][: len(x)])
        scores = torch.mm(x, factors, out=memory[1][: len(x)]).add_(norms)  # with `out` float32 also under autocast
        found = use(x, scores)
        spare.append(memory)
        return found

    return [torch.cat(found) for found in zip(*in_threads(work, parts), strict=True)]


def nearest_center(vectors: Vectors, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (n,) of the nearest of `centers` (k, d) to each of `vectors` (n, d), and squared distances (n,).

    argmin_j ‖x − c_j‖² = argmin_j ‖c_j‖² − 2⟨x, c_j⟩ is one matrix product in float32. Rows whose two best scores
    are closer than its rounding error are decided again in float64, ties to the lower id. So the ids equal a
    brute-force search and do not depend on the batch. A GPU does so for the few best of every row, because asking which
    rows are close would make it wait.
    """
    if centers.device.type == "mps":  # it has no float64
        ids, distances = nearest_center(vectors[:].cpu(), centers.cpu())
        return ids.to(centers.device), distances.to(centers.device)
    middle = centers.detach().mean(0)  # smaller numbers, smaller rounding error
    centers = centers.detach() - middle
    largest = centers.square().sum(1).max().sqrt()
    if middle.device.type != "cpu":
        parts = chunks(vectors, middle.numel(), len(centers), ON_GPU)
        found = [_search_on_gpu(vectors[rows] - middle, centers) for rows in parts]
        return torch.cat([ids for ids, _ in found]), torch.cat([distances for _, distances in found])

    def search(x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.linalg.vector_norm(x, dim=1)
        ids, best = least(scores)
        limit = best + torch.finfo(torch.float32).eps * x.shape[1] * largest * (length + largest)
        close = np.flatnonzero(least_but(scores, ids).numpy() <= limit.numpy())
        if len(close):
            found = ids.numpy()  # the same memory, and small operations cost less than torch's
            near = scores.numpy()[close] <= limit.numpy()[close, None]  # (close, k)
            near[np.arange(len(close)), found[close]] = True
            found[close] = _nearest_float64(x.numpy()[close], centers.numpy(), near)
        return ids, (best + length.square()).clamp_(min=0)

    ids, distances = score_chunks(vectors, centers, search, middle)
    return ids, distances


def least(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Places (n,) of the least of scores (n, k), the first of equals, and the least themselves (n,)."""
    ids = torch.from_numpy(scores.numpy().argmin(1))  # vectorised, as torch's is not
    return ids, scores.gather(1, ids[:, None])[:, 0]


def least_but(scores: Tensor, ids: Tensor) -> Tensor:
    """The least of scores (n, k) apart from those at places ids (n,), which are overwritten."""
    return scores.scatter_(1, ids[:, None], torch.inf).amin(1)


def _search_on_gpu(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.addmm(centers.square().sum(1), x, centers.t(), alpha=-2)  # (n, k)
    return nearest_of_few(x, centers, scores), (scores.amin(1) + x.square().sum(1)).clamp_(min=0)


def nearest_of_few(x: Tensor, centers: Tensor, scores: Tensor) -> Tensor:
    """Ids (n,) of the nearest centres, decided in float64 among the NEAR best by their scores (n, k)."""
    few = scores.topk(min(NEAR, scores.shape[1]), dim=1, largest=False).indices.sort(1).values  # (n, few)
    exact = (x.double()[:, None] - centers.double()[few]).square().sum(2)  # (n, few)
    return few.gather(1, exact.argmin(1, keepdim=True))[:, 0]


def _nearest_float64(x: NDArray[Any], centers: NDArray[Any], near: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ids (n,) of the nearest centres to x (n, d), in float64, among those that are near, (n, k); one at least is."""
    rows, ids = near.nonzero()  # (pairs,) each
    exact = np.empty(len(rows))
    for start in range(0, len(rows), AGAIN):
        some = slice(start, start + AGAIN)
        exact[some] = np.square(x[rows[some]] - centers[ids[some]].astype(np.float64)).sum(1)
    order = np.lexsort((exact, rows))  # by row, then by distance, then by id
    counts = near.sum(1)
    found: NDArray[np.int64] = ids[order[counts.cumsum() - counts]]
    return found


def as_float64(tensor: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
