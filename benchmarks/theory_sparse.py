"""Σλ² and α of a large sparse mask graph: prints one JSON line with seconds and peak memory.

    python benchmarks/theory_sparse.py --views 1000000 --tokens 1000

Every view meets targets of its own class more often than others, so that neither term is trivial.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
from scipy.sparse import csr_array

from benchmarks.record import record
from clustermim.theory import alpha_hard, sum_sq

CLASSES = 100


def sparse_joint(views: int, targets: int, per_view: int, seed: int) -> tuple[csr_array, np.ndarray]:
    """(M, y1): views × targets counts with `per_view` draws a view, half of them from its own class's targets."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=views)
    columns = rng.integers(targets, size=(views, per_view), dtype=np.int32)
    own = per_view // 2
    columns[:, :own] += (labels[:, None] - columns[:, :own]) % CLASSES  # target j belongs to class j mod CLASSES
    columns %= targets
    data = np.ones(columns.size, dtype=np.float32)
    starts = np.arange(0, columns.size + 1, per_view, dtype=np.int32)
    return csr_array((data, columns.ravel(), starts), shape=(views, targets)), labels


def main() -> None:
    """Make the graph, time both terms, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--views", type=int, default=1_000_000)
    parser.add_argument("--targets", type=int, default=4_000)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--per-view", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    M, labels = sparse_joint(args.views, args.targets, args.per_view, args.seed)
    tok = np.arange(args.targets) % args.tokens
    start = time.perf_counter()
    spectral = sum_sq(M, tok)
    middle = time.perf_counter()
    error = alpha_hard(M, tok, labels)
    end = time.perf_counter()
    results = {
        "nonzero": int(M.nnz),
        "sum_sq": spectral,
        "alpha": error,
        "seconds": round(end - start, 2),
        "sum_sq_seconds": round(middle - start, 2),
        "alpha_seconds": round(end - middle, 2),
        "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),  # KiB on Linux
    }
    record("theory-sparse", vars(args), results)


if __name__ == "__main__":
    main()
