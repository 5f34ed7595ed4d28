"""k-means on vectors that fit in memory: greedy k-means++, Lloyd on growing subsets, relocation of idle centres.

Three ideas make it fast without changing what it minimises:
* iterations run in the leading principal components (97 % of the variance: about 60 for image patches of 768
  numbers), and the centres are taken in the full space at the end;
* they run on a small shuffled subset first, then on four times as many vectors, and so on to all of them;
* on the small subset, centres that save little are moved to clusters that cost much, while that helps
  (k-means++ alone spends centres on outliers when k is large).

Every vector has a random key in [0, 1), which is its own whichever rank holds it. A subset has the least keys, and
what is drawn at random is drawn by keys. So the result does not depend on how many ranks share the vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from clustermim.distributed import all_reduce_max, all_reduce_sum, broadcast, gather_rows, rank
from clustermim.errors import TokenizerError
from clustermim.threads import in_threads, undivided
from clustermim.tokenizers.nearest import Vectors, chunks, least, least_but, score_chunks, sum_by_id

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


@dataclass(frozen=True)
class Shuffled:
    """Vectors (n, d) of this rank with their keys (n,), in rising order."""

    vectors: Vectors
    keys: Tensor

    @cached_property
    def total(self) -> int:
        """How many vectors all ranks hold."""
        return int(all_reduce_sum(torch.tensor(len(self.keys))))

    def between(self, first: int, last: int) -> slice:
        """This rank's part of about so many of all vectors, counted by their keys."""
        ends = torch.tensor([first / self.total, last / self.total], dtype=torch.float64)
        start, end = torch.searchsorted(self.keys, ends).tolist()
        return slice(start, len(self.keys) if last >= self.total else end)


class Part(NamedTuple):
    """Some vectors (n, d), with their keys (n,)."""

    vectors: Tensor
    keys: Tensor

    def one_each(self, ids: Tensor, k: int, turn: Tensor) -> tuple[Tensor, Tensor]:
        """A random vector (k, d) of each cluster, by ids (n,), and which clusters (k,) have one."""
        drawn = (self.keys + turn) % 1
        lowest = torch.full((k,), -1.0, dtype=drawn.dtype)
        most = all_reduce_max(lowest.scatter_reduce(0, ids, drawn, "amax"))  # (k,)
        wins = drawn == most[ids]
        found = self.vectors.new_zeros(k, self.vectors.shape[1])
        return all_reduce_sum(found.index_add_(0, ids[wins], self.vectors[wins])), most >= 0


def highest(vectors: Vectors, scores: Tensor, count: int) -> Tensor:
    """The `count` vectors (count, d) with the highest scores (n,) among those of all ranks."""
    own = scores.topk(min(count, len(scores)))
    rows = [vectors[row : row + 1] for row in own.indices.tolist()]
    found = gather_rows(torch.cat([own.values[:, None].double(), torch.cat(rows).double()], 1))
    return found[found[:, 0].argsort(descending=True, stable=True)[:count], 1:].float()


class Projection:
    """Centring and rotation onto the leading principal components: (n, d) to (n, q), q ≤ d."""

    def __init__(self, rows: Shuffled, seed: int = 0) -> None:
        width = rows.vectors[:1].shape[1]
        part = rows.vectors[rows.between(0, max(2048, SAMPLE // width))].double()
        count, total = all_reduce_sum(torch.tensor(float(len(part)))), all_reduce_sum(part.sum(0))
        self.mean = (total / count).float()
        part = part - self.mean
        covariance = (all_reduce_sum(part.t() @ part) / count).float()
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
        found = torch.empty(len(vectors), self.axes.shape[1])
        in_threads(lambda rows: found[rows].copy_(self(vectors[rows])), chunks(vectors, *self.axes.shape))
        return found


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
        k = len(centers)

        def assign(x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            ids, best = least(scores)
            gaps = least_but(scores, ids) - best if second else best[:0]
            return ids, (best + x.square().sum(1)).clamp_(min=0), gaps

        self.ids, self.distances, gaps = score_chunks(vectors, centers, assign)
        self.cost, self.saving = (  # (k,) inertia by cluster, and what removing its centre would add
            all_reduce_sum(torch.bincount(self.ids[: len(values)], values.double(), k))
            for values in (self.distances, gaps)
        )
        self.counts = all_reduce_sum(torch.bincount(self.ids, minlength=k))  # (k,)
        self.inertia = float(self.cost.sum() / self.counts.sum())  # mean squared distance

    def means(self, vectors: Tensor, centers: Tensor) -> Tensor:
        """Mean vector of each cluster; an empty one keeps its centre."""
        sums = all_reduce_sum(sum_by_id(self.ids, vectors, len(centers)))
        return torch.where(self.counts[:, None] > 0, sums / self.counts.clamp(min=1)[:, None], centers)


def lloyd(
    part: Part, centers: Tensor, turns: Generator, *, iterations: int, tolerance: float, log: Log
) -> tuple[Tensor, float]:
    """Lloyd's iterations until the inertia falls by less than `tolerance`; returns centres and inertia before them."""
    previous = math.inf
    for _ in range(iterations):
        work = Assignment(part.vectors, centers)
        centers = work.means(part.vectors, centers)
        empty = (work.counts == 0).nonzero()[:, 0]
        if len(empty):  # re-seed as k-means++ would: at vectors far from their centre, drawn by squared distance
            drawn = (part.keys + torch.rand((), generator=turns)) % 1
            gumbel = -torch.log(-torch.log(drawn.clamp(1e-12, 1 - 1e-12)))
            far = highest(part.vectors, (work.distances.double() + 1e-12).log() + gumbel, len(empty))
            centers[empty[: len(far)]] = far
        log(patches=int(work.counts.sum()), inertia=work.inertia, reseeded=len(empty))
        if not len(empty) and work.inertia >= (1 - tolerance) * previous:
            break
        previous = work.inertia
    return centers, work.inertia


def relocate(part: Part, centers: Tensor, turns: Generator, count: int) -> Tensor:
    """Move the `count` centres whose loss costs least into the clusters with the largest inertia."""
    work = Assignment(part.vectors, centers, second=True)
    idle = work.saving.argsort(stable=True)[:count]
    work.cost[idle] = -1
    crowded = work.cost.argsort(descending=True, stable=True)[:count]
    members, there = part.one_each(work.ids, len(centers), torch.rand((), generator=turns))
    centers = centers.clone()
    centers[idle] = torch.where(there[crowded, None], members[crowded], centers[idle])
    return centers


def improve(part: Part, centers: Tensor, inertia: float, turns: Generator, log: Log) -> Tensor:
    """Relocate a tenth of the centres, keep what lowers the inertia, try half as many when it does not."""
    count = max(1, len(centers) // 10)
    for _ in range(ROUNDS if len(centers) > 1 else 0):
        moved = relocate(part, centers, turns, count)
        moved, after = lloyd(part, moved, turns, iterations=6, tolerance=1e-3, log=log)
        if after < inertia:
            centers, inertia = moved, after
        else:
            count = max(1, count // 2)
    return centers


def distinct_pool(rows: Shuffled, k: int) -> Tensor:
    """At least k distinct rows for k-means++ to choose from; reads no further than it must."""
    step, start, pool = max(POOL * k, 2048), 0, rows.vectors[:1][:0]
    while len(pool) < k and start < rows.total:
        own = torch.unique(rows.vectors[rows.between(start, start + step)], dim=0)
        pool = cast(Tensor, torch.unique(torch.cat([pool, gather_rows(own)]), dim=0))
        start += step
    if len(pool) < k:
        raise TokenizerError(
            f"k = {k}, but there are only {len(pool)} distinct patches among the {rows.total} used: "
            f"choose --k {len(pool)} or less"
        )
    return pool


def cluster(
    vectors: Vectors, k: int, *, keys: Tensor | None = None, seed: int, iterations: int, log: Log
) -> Assignment:
    """Who belongs where among shuffled vectors (n, d), after k-means with at most `iterations` in each stage.

    Vectors without keys (n,) are taken to be in random order.
    """
    if keys is None:
        keys = (torch.arange(len(vectors), dtype=torch.float64) + 0.5) / max(len(vectors), 1)
    rows = Shuffled(vectors, keys)
    pool = distinct_pool(rows, k)
    projection = Projection(rows)  # in torch's own threads: with fewer of them LAPACK rounds otherwise

    def log_full(inertia: float, **values: Any) -> None:
        log(inertia=inertia + projection.dropped, **values)

    with undivided():
        whole, pool = Part(projection.all(vectors), keys), projection(pool)
        return _cluster_reduced(whole, rows, pool, k, seed=seed, iterations=iterations, log=log_full)


def _cluster_reduced(
    whole: Part, rows: Shuffled, pool: Tensor, k: int, *, seed: int, iterations: int, log: Log
) -> Assignment:
    """The same of vectors in few dimensions, with a pool of which k are the first centres."""
    turns = Generator().manual_seed(seed)

    def first(count: int) -> Part:
        some = rows.between(0, count)
        return Part(whole.vectors[some], whole.keys[some])

    drawn = pool.new_empty(k, pool.shape[1])
    centers = broadcast(plus_plus(pool, k, Generator().manual_seed(seed)) if rank() == 0 else drawn)
    size = min(rows.total, max(START * k, FIRST, rows.total // GROWTH**2))
    options: dict[str, Any] = {"iterations": iterations, "log": log}
    centers, inertia = lloyd(first(size), centers, turns, tolerance=1e-3, **options)
    centers = improve(first(size), centers, inertia, turns, log)
    while size * GROWTH < rows.total:
        size *= GROWTH
        centers, _ = lloyd(first(size), centers, turns, tolerance=1e-3, **options)
    centers, _ = lloyd(whole, centers, turns, tolerance=5e-5, **options)
    return Assignment(whole.vectors, centers)


@undivided()
def cluster_means(vectors: Vectors, work: Assignment) -> Tensor:
    """Centres (k, d) of clusters in the full space, summed in float64; an empty one moves to a far vector."""
    k, width = len(work.counts), vectors[:1].shape[1]
    sums = torch.zeros(k, width, dtype=torch.float64)
    for rows in chunks(vectors, width, k):
        sums.index_add_(0, work.ids[rows], vectors[rows].double())
    centers = (all_reduce_sum(sums) / work.counts.clamp(min=1)[:, None]).float()
    empty = (work.counts == 0).nonzero()[:, 0]
    if len(empty):
        far = highest(vectors, work.distances, len(empty))
        centers[empty[: len(far)]] = far
    return centers
