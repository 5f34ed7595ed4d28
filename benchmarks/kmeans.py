"""k-means on image patches: ours, faiss's, scikit-learn's, and the procedure of the paper's authors.

All get the same patches in memory and are compared by the inertia of their centres on all of them, interleaved
round by round: idle, and with `--busy` beside processes that load every core. The authors' procedure is
MiniBatchKMeans.partial_fit on class-sorted batches of 256 images, 100 epochs of it. It is timed once, for as many as
`--epochs` says, and the rest is reckoned: an epoch takes as long as another.

    python -m benchmarks.kmeans --data 'folder:images/train' --patch-size 16 --k 50

Rows of a record that have another k, or were measured with other company, are kept.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from statistics import median
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from benchmarks.loading import burning
from benchmarks.record import FOLDER, record, seconds
from benchmarks.turns import ratio
from clustermim.data import open_source
from clustermim.patches import patchify
from clustermim.tokenizers.lloyd import authors_kmeans, cluster, cluster_means
from clustermim.tokenizers.nearest import Vectors, nearest_center
from clustermim.tokenizers.space import Sample, Space

IMAGES = 256  # in a batch of the authors
EPOCHS = 100  # of theirs


def read_patches(data: str, patch_size: int, count: int) -> tuple[Tensor, int]:
    """Patches (n, d) uint8 of evenly spread images in the order of the source, and how many an image has."""
    source = open_source(data)
    per_image = (source.shape[1] // patch_size) * (source.shape[2] // patch_size)
    chosen = np.linspace(0, len(source) - 1, min(len(source), -(-count // per_image))).astype(np.int64)
    images = torch.cat([source.read(part).images for part in np.array_split(chosen, max(1, len(chosen) // 512))])
    return patchify(images, patch_size).flatten(0, 1)[:count].clone(), per_image


def vectors_of(patches: Tensor) -> Vectors:
    """Patches (n, d), kept as bytes."""
    nothing = torch.empty(0)
    return Space(1).vectors(Sample(patches, torch.zeros(len(patches), dtype=torch.long), patches, nothing, nothing, 0))


def inertia(vectors: Vectors, centers: Tensor) -> float:
    """Mean squared distance of every patch to its centre."""
    return float(nearest_center(vectors, centers)[1].double().mean())


def quiet(**values: Any) -> None:
    """A log that keeps nothing."""


def torch_kmeans(vectors: Vectors, k: int, seed: int) -> Tensor:
    """Ours."""
    return cluster_means(vectors, cluster(vectors, k, seed=seed, iterations=30, log=quiet))


def faiss_kmeans(vectors: Tensor, k: int, seed: int) -> Tensor:
    """faiss.Kmeans on all vectors: its silent subsampling is off."""
    sizes = {"min_points_per_centroid": 1, "max_points_per_centroid": len(vectors)}
    model = faiss.Kmeans(vectors.shape[1], k, niter=25, seed=seed, **sizes)
    model.train(vectors.numpy())
    return torch.from_numpy(np.array(model.centroids, dtype=np.float32))


def faiss_default(vectors: Tensor, k: int, seed: int) -> Tensor:
    """faiss.Kmeans as it comes: at most 256 points a centroid, 25 iterations."""
    model = faiss.Kmeans(vectors.shape[1], k, seed=seed)
    model.train(vectors.numpy())
    return torch.from_numpy(np.array(model.centroids))


def contenders(ordered: Tensor, k: int, epochs: int, batch: int) -> dict[str, Callable[[int], Tensor]]:
    """Each way to make k centres of the same patches, by name, as a function of the seed."""
    shuffled = ordered[torch.randperm(len(ordered), generator=torch.Generator().manual_seed(0))]
    sample = vectors_of(shuffled)
    floats = sample[:]  # made outside the clock, while ours turns bytes into numbers inside it
    small = vectors_of(shuffled[: 256 * k])

    def authors(seed: int) -> Tensor:
        stream = ([vectors_of(part)[:] for part in ordered.split(batch) if len(part) == batch] for _ in range(epochs))
        return authors_kmeans(stream, k, seed, quiet)

    ways: dict[str, Callable[[int], Tensor]] = {
        "clustermim": lambda seed: torch_kmeans(sample, k, seed),
        "faiss": lambda seed: faiss_kmeans(floats, k, seed),
    }
    if epochs:
        ways["authors"] = authors
    if len(small) < len(sample):  # as faiss comes it uses no more than this, without a word
        ways["clustermim, 256 patches a centre"] = lambda seed: torch_kmeans(small, k, seed)
        ways["faiss, as it comes"] = lambda seed: faiss_default(floats, k, seed)
    return ways


def measure(ways: dict[str, Callable[[int], Tensor]], everything: Vectors, rounds: int) -> dict[str, Any]:
    """Seconds and inertia of every way, for each seed; that of the authors takes one turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(rounds):
        for name, way in ways.items():
            if name == "authors" and seed:
                continue
            spent, centers = seconds(lambda way=way, seed=seed: way(seed))
            times[name].append(round(spent, 3))
            costs[name].append(round(inertia(everything, centers), 5))
            print(f"{name}: {spent:.2f} s, inertia {costs[name][-1]:.4f}", flush=True)
    return {name: {"seconds": times[name], "inertia": costs[name]} for name in ways}


def compare(found: dict[str, Any], epochs: int) -> None:
    """Add how many times slower each way is than ours; of the authors' for all of their epochs."""
    ours = found["clustermim"]["seconds"]
    for name, row in found.items():
        if name == "authors":
            row["epochs"], row["seconds_of_100_epochs"] = epochs, round(row["seconds"][0] * EPOCHS / epochs, 1)
            row["times_slower_than_clustermim"] = round(row["seconds_of_100_epochs"] / median(ours), 2)
        else:
            row["times_slower_than_clustermim"] = round(ratio(row["seconds"], ours), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="textures:?images=4000&grid=8&patch=16&noise=0.1")
    parser.add_argument("--patch-size", type=int, default=16)
    parser.add_argument("--patches", type=int, default=200_000)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=2, help="of the authors' procedure that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="beside processes that load every core")
    parser.add_argument("--name", default="kmeans")
    options = parser.parse_args()
    ordered, per_image = read_patches(options.data, options.patch_size, options.patches)
    ways = contenders(ordered, options.k, options.epochs, IMAGES * per_image)
    with burning((os.cpu_count() or 1) * options.busy):
        found = measure(ways, vectors_of(ordered), options.rounds)
    compare(found, options.epochs)
    this = {"k": options.k, "busy": options.busy}
    path, kept = FOLDER / f"{options.name}.json", []
    if path.exists():
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        kept = [row for row in rows if {name: row.get(name) for name in this} != this and "busy" in row]
    rows = kept + [{**this, "method": name, **row} for name, row in found.items()]
    config = {"data": "/".join(options.data.split("/")[-2:]), "dimension": ordered.shape[1]}
    config |= {name: getattr(options, name) for name in ("patch_size", "patches", "rounds")}
    record(options.name, config, sorted(rows, key=lambda row: (row["k"], row["busy"])))


if __name__ == "__main__":
    main()
