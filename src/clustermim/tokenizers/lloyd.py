"""k-means on vectors that fit in memory: greedy k-means++, Lloyd on growing subsets, relocation of idle centres.

Three ideas make it fast without changing what it minimises:
* iterations run in the leading principal components (97 % of the variance: about 60 for image patches of 768
  numbers), and the centres are taken in the full space at the end;
* they run on a small shuffled subset first, then on four times as many vectors, and so on to all of them;
* on the small subset, centres that save little are moved to clusters that cost much, while that helps
  (k-means++ alone spends centres on outliers when k is large).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from clustermim.distributed import all_reduce_sum, broadcast, rank, world_size
from clustermim.errors import TokenizerError
from clustermim.tokenizers.nearest import chunks

KEEP_VARIANCE = 0.97  # of the variance, kept by the principal components that the iterations use
MIN_REDUCED = 64  # vectors no longer than this are used as they are
MAX_REDUCED = 128  # and no more components than this are used, whatever they keep
SAMPLE = 2**22  # numbers that the components are computed from
GROWTH = 4  # each stage uses so many times more vectors
START = 32  # vectors a centre in the first stage, at least
FIRST = 16_384  # vectors in the first stage, at least
POOL = 16  # vectors a centre that k-means++ chooses from
ROUNDS = 16  # attempts to relocate centres

Log = Callable[..., None]
Generator = torch.Generator


class Vectors(Protocol):
    """Rows (n, d) that are made when asked for: a tensor, or patches kept as bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Projection:
    """Centring and rotation onto the leading principal components: (n, d) to (n, q), q ≤ d."""

    def __init__(self, vectors: Vectors, seed: int = 0) -> None:
        width = vectors[:1].shape[1]
        part = vectors[: max(2048, SAMPLE // width)]
        count, total = all_reduce_sum(torch.tensor(float(len(part)))), all_reduce_sum(part.double().sum(0))
        self.mean = (total / count).float()
        part = part - self.mean
        covariance = all_reduce_sum(part.t() @ part) / count
        if width <= MIN_REDUCED:
            self.axes, self.dropped = torch.eye(width), 0.0
            return
        values, axes = leading_axes(covariance, min(width, MAX_REDUCED), seed)
        total_variance = float(covariance.trace())
        short = values.cumsum(0) < KEEP_VARIANCE * total_variance
        self.axes = broadcast(axes[:, : max(MIN_REDUCED, int(short.sum()) + 1)])
        self.dropped = max(0.0, total_variance - float(values[: self.axes.shape[1]].sum()))  # not seen by iterations

    def __call__(self, vectors: Tensor) -> Tensor:
        return (vectors - self.mean) @ self.axes

    def all(self, vectors: Vectors) -> Tensor:
        """Every row, projected chunk by chunk."""
        return torch.cat([self(vectors[rows]) for rows in chunks(vectors, *self.axes.shape)])


def leading_axes(covariance: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenvalues, descending, and eigenvectors (d, count), by subspace iteration.

    A full decomposition would cost minutes for long vectors; these need be no more exact than a sample's are.
    """
    start = torch.randn(len(covariance), count, generator=Generator().manual_seed(seed))
    basis = torch.linalg.qr(start).Q
    for _ in range(4):
        basis = torch.linalg.qr(covariance @ basis).Q
    values, rotation = torch.linalg.eigh(basis.t() @ covariance @ basis)
    return values.flip(0).clamp(min=0), basis @ rotation.flip(1)


def plus_plus(pool: Tensor, k: int, generator: Generator) -> Tensor:
    """Greedy k-means++: k rows of `pool` (n, d), each the best of 2 + ln k candidates drawn by squared distance."""
    square = pool.square().sum(1)
    trials = 2 + int(math.log(k))
    chosen = [int(torch.randint(len(pool), (1,), generator=generator))]
    distance = (pool - pool[chosen[0]]).square().sum(1)
    while len(chosen) < k:
        distance[chosen[-1]] = 0
        if not bool((distance > 0).any()):  # the rest differ by less than rounding: any of them will do
            rest = torch.ones(len(pool), dtype=torch.bool)
            rest[chosen] = False
            chosen += rest.nonzero()[: k - len(chosen), 0].tolist()
            break
        candidates = torch.multinomial(distance, trials, replacement=True, generator=generator)
        to_candidate = square[:, None] + square[candidates] - 2 * (pool @ pool[candidates].t())  # (n, trials)
        closer = torch.minimum(to_candidate.clamp_(min=0), distance[:, None])
        best = int(closer.sum(0).argmin())
        chosen.append(int(candidates[best]))
        distance = closer[:, best].contiguous()
    return pool[torch.tensor(chosen)].clone()


class Assignment:
    """One pass over vectors (n, d) with centres (k, d): who belongs where, and what it costs."""

    def __init__(self, vectors: Tensor, centers: Tensor, *, second: bool = False) -> None:
        k, norms, transposed = len(centers), centers.square().sum(1)[None], centers.t().contiguous()
        self.ids = torch.empty(len(vectors), dtype=torch.long, device=vectors.device)
        self.distances = torch.empty(len(vectors), device=vectors.device)
        saving = torch.zeros(k, dtype=torch.float64, device=vectors.device)
        for rows in chunks(vectors, vectors.shape[1], k):
            x = vectors[rows]
            scores = torch.addmm(norms, x, transposed, alpha=-2)  # (chunk, k)
            best, self.ids[rows] = scores.min(1)
            self.distances[rows] = (best + x.square().sum(1)).clamp_(min=0)
            if second:
                scores.scatter_(1, self.ids[rows][:, None], torch.inf)
                saving.index_add_(0, self.ids[rows], (scores.min(1).values - best).double())
        local = torch.zeros(k, dtype=torch.float64, device=vectors.device)
        self.cost = all_reduce_sum(local.index_add_(0, self.ids, self.distances.double()))  # (k,) inertia by cluster
        self.saving = all_reduce_sum(saving)  # (k,) what removing a centre would add
        self.counts = all_reduce_sum(torch.bincount(self.ids, minlength=k))  # (k,)
        self.inertia = float(self.cost.sum() / self.counts.sum())  # mean squared distance

    def means(self, vectors: Tensor, centers: Tensor) -> Tensor:
        """Mean vector of each cluster; an empty one keeps its centre."""
        sums = all_reduce_sum(torch.zeros_like(centers).index_add_(0, self.ids, vectors))
        return torch.where(self.counts[:, None] > 0, sums / self.counts.clamp(min=1)[:, None], centers)


def lloyd(
    vectors: Tensor, centers: Tensor, generator: Generator, *, iterations: int, tolerance: float, log: Log
) -> tuple[Tensor, float]:
    """Lloyd's iterations until the inertia falls by less than `tolerance`; returns centres and inertia before them."""
    previous = math.inf
    for _ in range(iterations):
        work = Assignment(vectors, centers)
        centers = work.means(vectors, centers)
        empty = (work.counts == 0).nonzero()[:, 0]
        if len(empty):  # re-seed as k-means++ would: at vectors far from their centre
            far = torch.multinomial(work.distances + 1e-12, len(empty), generator=generator)
            centers[empty] = vectors[far]
            centers = broadcast(centers)
        log(patches=int(work.counts.sum()), inertia=work.inertia, reseeded=len(empty))
        if not len(empty) and work.inertia >= (1 - tolerance) * previous:
            break
        previous = work.inertia
    return centers, work.inertia


def relocate(vectors: Tensor, centers: Tensor, generator: Generator, count: int) -> Tensor:
    """Move the `count` centres whose loss costs least into the clusters with the largest inertia."""
    work = Assignment(vectors, centers, second=True)
    idle = work.saving.argsort(stable=True)[:count]
    work.cost[idle] = -1
    crowded = work.cost.argsort(descending=True, stable=True)[:count]
    centers = centers.clone()
    for source, destination in zip(idle.tolist(), crowded.tolist(), strict=True):
        members = (work.ids == destination).nonzero()[:, 0]
        if len(members):
            centers[source] = vectors[members[torch.randint(len(members), (1,), generator=generator)]][0]
    return broadcast(centers)


def improve(vectors: Tensor, centers: Tensor, inertia: float, generator: Generator, log: Log) -> Tensor:
    """Relocate a tenth of the centres, keep what lowers the inertia, try half as many when it does not."""
    count = max(1, len(centers) // 10)
    for _ in range(ROUNDS if len(centers) > 1 else 0):
        moved = relocate(vectors, centers, generator, count)
        moved, after = lloyd(vectors, moved, generator, iterations=6, tolerance=1e-3, log=log)
        if after < inertia:
            centers, inertia = moved, after
        else:
            count = max(1, count // 2)
    return centers


def distinct_pool(vectors: Vectors, k: int) -> Tensor:
    """At least k distinct rows for k-means++ to choose from; reads no further than it must."""
    step = max(POOL * k, 2048)
    pool = cast(Tensor, torch.unique(vectors[:step], dim=0))
    for start in range(step, len(vectors), step):
        if len(pool) >= k:
            break
        pool = cast(Tensor, torch.unique(torch.cat([pool, vectors[start : start + step]]), dim=0))
    distinct, used = broadcast(torch.tensor([len(pool), len(vectors)])).tolist()  # the first rank draws the centres
    if distinct >= k:
        return pool
    those = "used" if world_size() == 1 else f"that the first of {world_size()} processes holds"
    raise TokenizerError(
        f"k = {k}, but there are only {distinct} distinct patches among the {used} {those}: "
        f"choose --k {distinct} or less"
    )


def cluster(vectors: Vectors, k: int, *, seed: int, iterations: int, log: Log) -> Assignment:
    """Who belongs where among shuffled vectors (n, d), after k-means with at most `iterations` in each stage."""
    generator = Generator().manual_seed(seed)
    pool = distinct_pool(vectors, k)
    projection = Projection(vectors)

    def log_full(inertia: float, **values: Any) -> None:
        log(inertia=inertia + projection.dropped, **values)

    reduced = projection.all(vectors)
    drawn = plus_plus(projection(pool), k, generator) if rank() == 0 else reduced.new_empty(k, reduced.shape[1])
    centers = broadcast(drawn)
    length = int(broadcast(torch.tensor(len(reduced))))  # so that all ranks, whose shares differ, take the same steps
    size = min(length, max(START * k, FIRST, length // GROWTH**2))
    options: dict[str, Any] = {"iterations": iterations, "log": log_full}
    centers, inertia = lloyd(reduced[:size], centers, generator, tolerance=1e-3, **options)
    centers = improve(reduced[:size], centers, inertia, generator, log_full)
    while size * GROWTH < length:
        size *= GROWTH
        centers, _ = lloyd(reduced[:size], centers, generator, tolerance=1e-3, **options)
    centers, _ = lloyd(reduced, centers, generator, tolerance=5e-5, **options)
    return Assignment(reduced, centers)


def cluster_means(vectors: Vectors, work: Assignment) -> Tensor:
    """Centres (k, d) of clusters in the full space, summed in float64; an empty one moves to a far vector."""
    k, width = len(work.counts), vectors[:1].shape[1]
    sums = torch.zeros(k, width, dtype=torch.float64)
    for rows in chunks(vectors, width, k):
        sums.index_add_(0, work.ids[rows], vectors[rows].double())
    centers = (all_reduce_sum(sums) / work.counts.clamp(min=1)[:, None]).float()
    empty = (work.counts == 0).nonzero()[:, 0]
    for center, row in zip(empty.tolist(), work.distances.argsort(descending=True)[: len(empty)].tolist(), strict=True):
        centers[center] = vectors[row : row + 1][0]
    return broadcast(centers)
