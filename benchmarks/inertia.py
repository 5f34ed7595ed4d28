"""Quality of k-means on real images: inertia beside scikit-learn's KMeans, and ids beside brute force.

python -m benchmarks.inertia --data cifar10/train --patch-size 4 --k 50
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from benchmarks.record import record, seconds
from clustermim.data import open_source
from clustermim.tokenizers import KMeansTokenizer
from clustermim.tokenizers.nearest import nearest_center
from clustermim.tokenizers.space import Space, draw_sample

CHECKED = 20_000  # patches whose ids are compared with brute force


def brute_force(vectors: Tensor, centers: Tensor) -> Tensor:
    """Ids by the definition of a distance, in float64."""
    parts = [(part.double()[:, None] - centers.double()).square().sum(2).argmin(1) for part in vectors.split(64)]
    return torch.cat(parts)


def measure(data: str, patch_size: int, k: int, patches: int, iterations: int) -> dict[str, Any]:
    """Both on the same patches."""
    source = open_source(data)
    spent, ours = seconds(lambda: KMeansTokenizer(k=k, patch_size=patch_size, max_patches=patches).fit(source))
    vectors = Space(patch_size).vectors(draw_sample(Space(patch_size), source, patches, 0))[:]
    model = KMeans(k, n_init=1, max_iter=iterations, random_state=0)
    spent_theirs, _ = seconds(lambda: model.fit(vectors.numpy()))
    theirs = float(nearest_center(vectors, torch.from_numpy(model.cluster_centers_).float())[1].double().mean())
    few = vectors[:CHECKED]
    differing = int((nearest_center(few, ours.centers_)[0] != brute_force(few, ours.centers_)).sum())
    return {
        "k": k,
        "patches": len(vectors),
        "inertia": ours.inertia_,
        "sklearn_inertia": theirs,
        "ratio": ours.inertia_ / theirs,
        "seconds_with_reading": round(spent, 2),
        "sklearn_seconds": round(spent_theirs, 2),
        "sklearn_iterations": int(model.n_iter_),
        "ids_compared": len(few),
        "ids_differing_from_brute_force": differing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits/train")
    parser.add_argument("--patch-size", type=int, default=2)
    parser.add_argument("--k", type=int, nargs="+", default=[50])
    parser.add_argument("--patches", type=int, default=200_000)
    parser.add_argument("--iterations", type=int, default=300, help="of scikit-learn, at most")
    parser.add_argument("--name", default="inertia")
    options = parser.parse_args()
    rows = [measure(options.data, options.patch_size, k, options.patches, options.iterations) for k in options.k]
    record(options.name, {**vars(options), "data": "/".join(options.data.split("/")[-2:])}, rows)
    for before, after in itertools.pairwise(rows):
        assert after["inertia"] < before["inertia"], "more centres must lower the inertia"


if __name__ == "__main__":
    main()
