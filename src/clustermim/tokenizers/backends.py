"""Whose k-means: ours, scikit-learn's or faiss's; on a stream; and the procedure of the paper's authors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from clustermim.distributed import broadcast
from clustermim.errors import ConfigError, MissingExtraError
from clustermim.tokenizers.lloyd import Assignment, Log, Vectors, cluster, cluster_means


def torch_kmeans(vectors: Vectors, k: int, seed: int, iterations: int, log: Log) -> Tensor:
    """Centres (k, d) by this project's k-means."""
    return cluster_means(vectors, cluster(vectors, k, seed=seed, iterations=iterations, log=log))


def sklearn_kmeans(vectors: Vectors, k: int, seed: int, iterations: int, log: Log) -> Tensor:
    """Centres (k, d) by scikit-learn's KMeans: k-means++, one start."""
    from sklearn.cluster import KMeans

    model = KMeans(k, n_init=1, max_iter=iterations, random_state=seed % 2**32).fit(vectors[:].numpy())
    log(iterations=int(model.n_iter_), patches=len(vectors), inertia=float(model.inertia_) / len(vectors))
    return torch.from_numpy(model.cluster_centers_).float()


def faiss_kmeans(vectors: Vectors, k: int, seed: int, iterations: int, log: Log) -> Tensor:
    """Centres (k, d) by faiss, on all the vectors given: its silent subsampling is off."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("--backend faiss", "faiss") from None
    data = vectors[:].numpy()
    model = faiss.Kmeans(
        data.shape[1],
        k,
        niter=iterations,
        seed=seed % 2**31,
        min_points_per_centroid=1,
        max_points_per_centroid=len(data),
    )
    model.train(data)
    for stats in model.iteration_stats or ():
        log(patches=len(data), inertia=float(stats["obj"]) / len(data))
    return torch.from_numpy(np.array(model.centroids, dtype=np.float32))


BACKENDS: dict[str, Callable[[Vectors, int, int, int, Log], Tensor]] = {
    "torch": torch_kmeans,
    "sklearn": sklearn_kmeans,
    "faiss": faiss_kmeans,
}


def authors_kmeans(epochs: Iterable[Iterable[Tensor]], k: int, seed: int, log: Log) -> Tensor:
    """Centres (k, d) as the authors make them: MiniBatchKMeans.partial_fit on batches in the order of the source.

    Its initial centres come from the first batch alone: about one class of a class-sorted folder. A smaller last
    batch is dropped, as theirs is.
    """
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(k, random_state=seed % 2**32, n_init="auto")
    full = 0
    for epoch, batches in enumerate(epochs, 1):
        for vectors in batches:
            full = full or len(vectors)
            if len(vectors) < full:
                continue
            if full < k:
                raise ConfigError(
                    f"the first batch has {len(vectors)} patches, fewer than k = {k}: choose a smaller --k"
                )
            model.partial_fit(vectors.numpy())
        log(epoch=epoch, batches=int(model.n_steps_))
    return torch.from_numpy(model.cluster_centers_).float()


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
