"""The search of the nearest centre, beside the machine's peak in matrix products, measured in the same turns.

    python -m benchmarks.nearest --data 'folder:images/train'

Vectors: patches of 4 × 4 (48 numbers), 64 principal components of patches of 16 × 16, and these patches (768).
`share_of_peak` counts the products 2·n·K·D alone as work. `share_of_product` is how long that product takes, cut into
the same chunks, of what the search takes: the rest is the comparison of n·K scores and the vectors themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.kmeans import read_patches, vectors_of
from benchmarks.record import record, seconds
from clustermim.threads import in_threads
from clustermim.tokenizers.lloyd import Assignment, Projection, Shuffled
from clustermim.tokenizers.nearest import chunks, nearest_center

SIZES = (50, 100, 500, 1000, 8192)
SIDE = 2048  # of the square matrices whose product is the peak
WORK = 6e10  # operations of one turn, so many vectors it has


def vectors_by_width(data: str, count: int) -> dict[int, Tensor]:
    """Shuffled vectors (n, D) for each D."""
    found = {}
    for side in (4, 16):
        patches, _ = read_patches(data, side, count)
        shuffled = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))]
        found[shuffled.shape[1]] = vectors_of(shuffled)[:]
    widest = max(found)
    keys = torch.arange(len(found[widest]), dtype=torch.float64) / len(found[widest])
    projection = Projection(Shuffled(found[widest], keys))
    projection.axes = projection.axes[:, :64]
    return dict(sorted({**found, 64: projection.all(found[widest])}.items()))


def measure(vectors: Tensor, k: int, turns: int) -> dict[str, Any]:
    """Medians of interleaved turns."""
    centers = Assignment(vectors, vectors[:k].clone()).means(vectors, vectors[:k])
    some = vectors[: max(16_384, int(WORK / (2 * k * vectors.shape[1])))]
    factors, square = centers.t(), torch.randn(SIDE, SIDE)
    ways: dict[str, Callable[[], object]] = {
        "search": lambda: nearest_center(some, centers),
        "product": lambda: in_threads(lambda rows: (some[rows] @ factors)[0, 0], chunks(some, *factors.shape)),
        "peak": lambda: square @ square,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            spent, _ = seconds(way)
            if turn:
                times[name].append(spent)
    taken = {name: median(spent) for name, spent in times.items()}
    peak, work = 2 * SIDE**3 / taken["peak"], 2 * some.shape[0] * k * some.shape[1]
    return {
        "dimension": some.shape[1], "k": k, "vectors": len(some), "peak_gigaflops": round(peak / 1e9),
        "nanoseconds_a_vector": round(1e9 * taken["search"] / len(some), 1),
        "share_of_peak": round(work / taken["search"] / peak, 3),
        "product_share_of_peak": round(work / taken["product"] / peak, 3),
        "share_of_product": round(taken["product"] / taken["search"], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="textures:?images=2000&grid=8&patch=16&noise=0.1")
    parser.add_argument("--patches", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for vectors in vectors_by_width(options.data, options.patches).values():
        for k in SIZES:
            rows.append(measure(vectors, k, options.turns))
            print(rows[-1], flush=True)
    record("nearest", {**vars(options), "data": "/".join(options.data.split("/")[-2:])}, rows)


if __name__ == "__main__":
    main()
