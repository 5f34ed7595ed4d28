"""k-means on image patches: ours, faiss's, and the procedure of the paper's authors.

All have the same patches in memory, each way in a process of its own, and are compared by the inertia of their
centres on all of them. They take turns: idle, and with `--busy` beside processes that load every core. Ours also stops
after fewer iterations: the fewest whose inertia is that of faiss or less are the time to equal inertia. The authors'
procedure is MiniBatchKMeans.partial_fit on class-sorted batches of 256 images, 100 epochs of it. It is timed once, for
as many as `--epochs` says, and the rest is reckoned: an epoch takes as long as another.

    python -m benchmarks.kmeans --data 'folder:images/train' --patch-size 16 --k 50

Rows of a record that have another k, or were measured with other company, are kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.loading import burning
from benchmarks.record import FOLDER, record, seconds
from benchmarks.turns import ratio
from clustermim.data import open_source
from clustermim.patches import patchify
from clustermim.tokenizers.authors import authors_kmeans
from clustermim.tokenizers.lloyd import cluster, cluster_means
from clustermim.tokenizers.nearest import Vectors, nearest_center
from clustermim.tokenizers.space import Sample, Space

IMAGES = 256  # in a batch of the authors
EPOCHS = 100  # of theirs
ITERATIONS = 30  # of ours, in each stage
FEWER = (1, 2, 3, 5, 10)
SMALL = "clustermim, 256 patches a centre"
EQUAL = "clustermim, to the inertia of faiss"

patches: Tensor  # of a process that takes turns
way: Callable[[int], Tensor]


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


def torch_kmeans(vectors: Vectors, k: int, seed: int, iterations: int) -> Tensor:
    """Ours."""
    return cluster_means(vectors, cluster(vectors, k, seed=seed, iterations=iterations, log=quiet))


def stopped(iterations: int) -> str:
    """The name of ours after so many iterations."""
    return f"clustermim, {iterations} iteration{'s' * (iterations > 1)}"


def faiss_kmeans(vectors: Tensor, k: int, seed: int, **options: int) -> Tensor:
    """faiss.Kmeans: 25 iterations, and unless options say otherwise on no more than 256 points a centroid."""
    import faiss  # here, so that no other way has its threads beside

    model = faiss.Kmeans(vectors.shape[1], k, niter=25, seed=seed, **options)
    model.train(vectors.numpy())
    return torch.from_numpy(np.array(model.centroids, dtype=np.float32))


def contender(name: str, ordered: Tensor, k: int, epochs: int, batch: int) -> Callable[[int], Tensor]:
    """The way of this name to make k centres of the patches, as a function of the seed."""
    shuffled = ordered[torch.randperm(len(ordered), generator=torch.Generator().manual_seed(0))]
    if name.startswith("clustermim"):
        sample = vectors_of(shuffled[: 256 * k] if name == SMALL else shuffled)
        iterations = {stopped(fewer): fewer for fewer in FEWER}.get(name, ITERATIONS)
        return lambda seed: torch_kmeans(sample, k, seed, iterations)
    if name.startswith("faiss"):
        floats = vectors_of(shuffled)[:]  # made outside the clock, while ours turns bytes into numbers inside it
        everything = {"min_points_per_centroid": 1, "max_points_per_centroid": len(floats)}
        return lambda seed: faiss_kmeans(floats, k, seed, **(everything if name == "faiss" else {}))
    parts = [vectors_of(part)[:] for part in ordered.split(batch) if len(part) == batch]
    return lambda seed: authors_kmeans((parts for _ in range(epochs)), k, seed, quiet)


def give_faiss_its_kernels() -> None:
    """faiss brings an OpenBLAS that takes processors newer than itself for very old ones: name the right kernels."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    for flag, kernels in (("avx512bw", "SkylakeX"), ("avx2", "Haswell")):
        if flag in flags:
            os.environ.setdefault("OPENBLAS_CORETYPE", kernels)


class Turns:
    """One way in a process of its own, which holds its patches."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.pool = multiprocessing.get_context("spawn").Pool(1, prepare, (name, options))

    def take(self, seed: int) -> tuple[float, float]:
        """Seconds, and the inertia on all patches."""
        return self.pool.apply(fit, (seed,))


def prepare(name: str, options: argparse.Namespace) -> None:
    """In the process: read the patches."""
    global patches, way
    patches, per_image = read_patches(options.data, options.patch_size, options.patches)
    way = contender(name, patches, options.k, options.epochs, IMAGES * per_image)


def fit(seed: int) -> tuple[float, float]:
    """In the process: one turn."""
    spent, centers = seconds(lambda: way(seed))
    return round(spent, 3), round(inertia(vectors_of(patches), centers), 5)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and inertia of every way, for each seed; that of the authors takes one turn."""
    names = ["clustermim", "faiss", *map(stopped, FEWER)] + ["authors"] * bool(options.epochs)
    if 256 * options.k < options.patches:  # as faiss comes it uses no more than this, without a word
        names += [SMALL, "faiss, as it comes"]
    ways = {name: Turns(name, options) for name in names}
    found: dict[str, Any] = {name: {"seconds": [], "inertia": []} for name in ways}
    for seed in range(options.rounds):
        for name, turns in ways.items():
            if name == "authors" and seed:
                continue
            spent, cost = turns.take(seed)
            found[name]["seconds"].append(spent)
            found[name]["inertia"].append(cost)
            print(f"{name}: {spent:.2f} s, inertia {cost:.4f}", flush=True)
    return found


def to_equal_inertia(found: dict[str, Any]) -> dict[str, Any]:
    """Seconds and inertia of ours with the fewest iterations that reach what faiss does, for each seed."""
    ways = [found[name] for name in (*map(stopped, FEWER), "clustermim")]
    goals, chosen = found["faiss"]["inertia"], []
    for seed, goal in enumerate(goals):
        reached = [(way["seconds"][seed], way["inertia"][seed]) for way in ways if way["inertia"][seed] <= goal]
        if not reached:
            return {}
        chosen.append(reached[0])
    return {EQUAL: {"seconds": [spent for spent, _ in chosen], "inertia": [cost for _, cost in chosen]}}


def compare(found: dict[str, Any], epochs: int) -> None:
    """Add how many times slower each way is than ours, and faiss than ours to its inertia; the authors' for all epochs.

    Ours is compared as it comes, with ITERATIONS.
    """
    found |= to_equal_inertia(found)
    if EQUAL in found:
        found["faiss"]["times_slower_to_its_inertia"] = round(
            ratio(found["faiss"]["seconds"], found[EQUAL]["seconds"]), 2
        )
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
    give_faiss_its_kernels()
    with burning((os.cpu_count() or 1) * options.busy):
        found = measure(options)
    compare(found, options.epochs)
    this = {"k": options.k, "busy": options.busy}
    path, kept = FOLDER / f"{options.name}.json", []
    if path.exists():
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        kept = [row for row in rows if {name: row.get(name) for name in this} != this and "busy" in row]
    rows = kept + [{**this, "method": name, **row} for name, row in found.items()]
    config = {"data": "/".join(options.data.split("/")[-2:]), "dimension": 3 * options.patch_size**2}
    config["openblas_of_faiss"] = os.environ.get("OPENBLAS_CORETYPE", "its choice")
    config |= {name: getattr(options, name) for name in ("patch_size", "patches", "rounds")}
    record(options.name, config, sorted(rows, key=lambda row: (row["k"], row["busy"])))


if __name__ == "__main__":
    main()
