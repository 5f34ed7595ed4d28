"""k-means on a stream: mini-batches over every patch, in bounded memory, on one rank or many."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from clustermim.distributed import broadcast
from clustermim.tokenizers.lloyd import Assignment


def stream_epoch(batches: Iterable[Tensor], centers: Tensor, weights: Tensor) -> tuple[Tensor, float, int]:
    """One pass of mini-batch k-means: centres (k, d), mean inertia as the batches arrived, re-seeded centres.

    A centre is the running mean of what was assigned to it, starting with `weights` (k,) vectors at its place:
    c ← (w·c + Σ x) / (w + n), w ← w + n. A centre that nothing came to moves to a vector far from its own.
    """
    seen = torch.zeros(len(centers), dtype=torch.long)
    cost = 0.0
    weights = weights.double()
    centers = centers.double()
    for vectors in batches:
        work = Assignment(vectors, centers.float())
        counts = work.counts.double()
        means = work.means(vectors, centers.float()).double()
        total = (weights + counts).clamp(min=1)
        centers = centers + (means - centers) * (counts / total)[:, None]
        weights = weights + counts
        seen += work.counts
        cost += float(work.cost.sum())
    idle = (seen == 0).nonzero()[:, 0]
    if len(idle):
        far = work.distances.argsort(descending=True, stable=True)[: len(idle)]
        centers[idle[: len(far)]] = vectors[far].double()
        centers = broadcast(centers)
    return centers.float(), cost / max(int(seen.sum()), 1), len(idle)
