"""The probe with its whole sweep of penalties, and nearest neighbours, on 50,000 × 384 features and 10,000 to test.

    python -m benchmarks.frozen_features [--what probe] [--turns 3]

The probe's share is that of the floating-point operations of a large matrix product, measured before and after each
sweep. Nearest neighbours take turns with faiss and scikit-learn, which search by brute force too.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import clustermim.evaluation.frozen as frozen
from benchmarks.record import record, seconds
from benchmarks.turns import ratio, take_turns
from clustermim.evaluation.features import Features
from clustermim.training.devices import keep_freed_memory

TRAIN, TEST, WIDTH, K = 50_000, 10_000, 384, 20


def features(classes: int) -> tuple[Features, Features]:
    """Five overlapping clusters a class, in features whose variance falls as a power law, bent as a network's are."""
    draws = torch.Generator().manual_seed(0)
    sizes = torch.arange(1, WIDTH + 1) ** -0.6
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draws))[0]
    centres = 0.35 * torch.randn(5 * classes, WIDTH, generator=draws)

    def draw(count: int) -> Features:
        clusters = torch.randint(len(centres), (count,), generator=draws)
        values = (centres[clusters] + torch.randn(count, WIDTH, generator=draws)) * sizes @ rotation
        return Features(F.gelu(3 * values) + 0.3 * values, clusters % classes)

    return draw(TRAIN), draw(TEST)


def gemm_rate() -> float:
    """Floating-point operations a second of a large matrix product."""
    matrix = torch.randn(2048, 2048)
    return 2 * 2048**3 / min(seconds(lambda: matrix @ matrix)[0] for _ in range(5))


def sweep(classes: int, turns: int) -> dict[str, Any]:
    """Seconds of the probe, and how many evaluations of its objective they are."""
    keep_freed_memory()  # as computing features does
    train, test = features(classes)
    rows, objective = list[int](), frozen.objective

    def counted(model: Any, values: Any, labels: Any, l2: float) -> Any:
        rows.append(len(values))
        return objective(model, values, labels, l2)

    frozen.objective = counted
    found, took, shares = None, [], []
    for turn in range(turns + 1):
        rows.clear()
        before = gemm_rate()
        time, found = seconds(lambda: frozen.probe_features(train, test))
        if turn:  # the first imports what L-BFGS needs
            took.append(time)
            shares.append(4 * sum(rows) * WIDTH * classes / time / statistics.mean([before, gemm_rate()]))
    assert found is not None
    return {
        "classes": classes,
        "seconds": round(statistics.median(took), 1),
        "slowest": round(max(took), 1),
        "evaluations": len(rows),
        "gemm_share": round(statistics.median(shares), 2),
        "l2": found.details["l2"],
        "accuracy": found.accuracy,
    }


def search_ours() -> Callable[[], None]:
    """Votes, as `knn` counts them."""
    train, test = features(10)

    def work() -> None:
        frozen.vote(train.values, train.labels, test.values, K, 0.07, 10)

    return work


def search_faiss() -> Callable[[], None]:
    """Neighbours alone."""
    import faiss

    train, test = (F.normalize(part.values).numpy() for part in features(10))

    def work() -> None:
        index = faiss.IndexFlatIP(WIDTH)
        index.add(train)
        index.search(test, K)

    return work


def search_sklearn() -> Callable[[], None]:
    """Neighbours alone."""
    from sklearn.neighbors import NearestNeighbors

    train, test = (part.values.numpy() for part in features(10))

    def work() -> None:
        NearestNeighbors(n_neighbors=K, algorithm="brute", metric="cosine").fit(train).kneighbors(test)

    return work


def neighbours(turns: int) -> dict[str, Any]:
    """Seconds of each, and how many times as long as ours the others take."""
    took = take_turns({"ours": search_ours, "faiss": search_faiss, "scikit-learn": search_sklearn}, turns)
    ours = took.pop("ours")
    others = {
        name: {"seconds": round(statistics.median(t), 2), "ratio": round(ratio(t, ours), 2)} for name, t in took.items()
    }
    return {"ours": {"seconds": round(statistics.median(ours), 2)}, **others}


def main() -> None:
    """Both, or one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", choices=("probe", "knn", "both"), default="both")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    config = {"train": TRAIN, "test": TEST, "width": WIDTH, "turns": args.turns}
    if args.what in ("probe", "both"):
        record("probe-sweep", config, [sweep(classes, args.turns) for classes in (10, 100)])
    if args.what in ("knn", "both"):
        record("knn", {**config, "k": K}, neighbours(args.turns))


if __name__ == "__main__":
    main()
