"""The stages that measure an encoder: `clustermim probe` and `clustermim knn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clustermim.data import open_source
from clustermim.data.cache import cache_folder
from clustermim.evaluation.features import Features, cached_features
from clustermim.evaluation.knn import knn
from clustermim.evaluation.linear import linear_probe
from clustermim.models.storage import load_encoder
from clustermim.progress import warn_skipped
from clustermim.runs import open_run, to_json


def probe(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Linear probe of a pretrained encoder: logistic regression on its frozen features, for both poolings.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to train the probe on; a tenth of them chooses the strength of its L2 penalty.
        test_data: labelled images to measure it on.
        out: the run folder to write; by default `probe` beside the encoder, replaced when run again.
        batch_size: images encoded at a time.
        seed: of the held-out tenth.
        json: print one JSON object instead of lines.
    """
    config = {"run": run, "data": data, "test_data": test_data, "protocol": "logistic regression, L-BFGS", "seed": seed}
    with open_run(out or str(Path(run) / "probe"), "probe", config, overwrite=out is None) as folder:
        train, test, described = _features(run, data, test_data, batch_size)
        results = {pooling: linear_probe(train[pooling], test[pooling], seed) for pooling in train}
        folder.summary = {"results": results, **described}
    _print(results, json, "linear probe")


def nearest_neighbours(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    k: int = 20,
    batch_size: int = 256,
    json: bool = False,
) -> None:
    """Classify by the nearest training images, by cosine similarity of frozen features, for both poolings.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to look among.
        test_data: labelled images to classify.
        out: the run folder to write; by default `knn` beside the encoder, replaced when run again.
        k: neighbours that vote.
        batch_size: images encoded at a time.
        json: print one JSON object instead of lines.
    """
    config = {"run": run, "data": data, "test_data": test_data, "k": k}
    with open_run(out or str(Path(run) / "knn"), "knn", config, overwrite=out is None) as folder:
        train, test, described = _features(run, data, test_data, batch_size)
        results = {pooling: knn(train[pooling], test[pooling], k) for pooling in train}
        folder.summary = {"results": results, **described}
    _print(results, json, f"{k} nearest neighbours")


def _features(
    run: str, data: str, test_data: str, batch_size: int
) -> tuple[dict[str, Features], dict[str, Features], dict[str, Any]]:
    """Features of both sets by pooling, computed once and kept in the cache, and what a summary says of the data."""
    encoder, sources = load_encoder(run), (open_source(data), open_source(test_data))
    cache = cache_folder() / "features"
    train, test = (
        cached_features(cache, encoder.weights, encoder, source, batch_size=batch_size,
                        extra={"mean": encoder.mean, "std": encoder.std})
        for source in sources
    )  # fmt: skip
    for source in sources:
        warn_skipped(source.skipped)
    return train, test, {"data": sources[0].describe(), "test_data": sources[1].describe(), "weights": encoder.weights}


def _print(results: dict[str, Any], json: bool, what: str) -> None:
    if json:
        print(to_json(results))
        return
    for pooling, result in results.items():
        low, high = result["interval"]
        print(
            f"{what}, {pooling}: {result['accuracy']:.2%} ({low:.2%} … {high:.2%} of {result['test_images']:,} images)"
        )
