"""The stages that measure an encoder: `clustermim probe` and `clustermim knn`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from clustermim.data import open_source
from clustermim.data.augment import Augment
from clustermim.data.cache import cache_folder
from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError
from clustermim.evaluation.features import Features, cached_features
from clustermim.evaluation.knn import knn
from clustermim.evaluation.labelled import print_results
from clustermim.evaluation.linear import linear_probe
from clustermim.evaluation.mae_probe import Descent, Poolings, mae_probe
from clustermim.models.storage import Encoder, load_encoder
from clustermim.progress import warn_skipped
from clustermim.runs import check_not_inside, open_run
from clustermim.training import Device, Precision, Tracker

LBFGS = ("run", "data", "test_data", "out", "batch_size", "seed", "overwrite")  # options of that protocol


def probe(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    protocol: Literal["lbfgs", "mae"] = "lbfgs",
    batch_size: int = 256,
    seed: int = 0,
    pooling: Poolings = "both",
    epochs: int = 90,
    optimizer: Descent = "lars",
    base_lr: float | None = None,
    warmup_epochs: float | None = None,
    augment: Augment = "crop",
    device: Device = "auto",
    precision: Precision = "auto",
    track: list[Tracker] | None = None,
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Linear probe of a pretrained encoder: a linear classifier of its frozen features, for both poolings.

    The options from `pooling` to `resume` are for `mae`.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to train the probe on; with lbfgs a tenth of them chooses the strength of its L2 penalty.
        test_data: labelled images to measure it on.
        out: the run folder to write; by default `probe` or `probe-mae` beside the encoder, replaced when run again.
        protocol: lbfgs solves logistic regression on fixed features; mae trains on random views, as MAE's authors do.
        batch_size: images encoded at a time; with mae, images to a step.
        seed: of the held-out tenth; with mae, of all that is random.
        pooling: what to classify: the mean of the patch tokens, the class token, or each of both.
        epochs: passes over the data.
        optimizer: lars, as MAE, or SGD with momentum.
        base_lr: learning rate for 256 images (MAE: 0.1); by default 0.3 for sgd, for lars by the steps.
        warmup_epochs: epochs in which the learning rate rises; by default a tenth of them.
        augment: random resized crop, shifts by an eighth with mirrored borders, or none; all but none also flip.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        track: also log to tensorboard or wandb.
        stop_after: leave after so many epochs of the schedule, to resume later.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
        json: print one JSON object instead of lines.
    """
    options = {key: value for key, value in locals().items() if key not in ("protocol", "json")}
    if protocol != "mae":
        check_defaults(probe, {key: value for key, value in options.items() if key not in LBFGS}, "--protocol mae")
    with process_group():
        measured = mae_probe if protocol == "mae" else lbfgs_probe
        results = measured(**{name: value for name, value in options.items() if protocol == "mae" or name in LBFGS})
        if rank() == 0:
            print_results(results, json, "linear probe")


def lbfgs_probe(
    run: str, data: str, test_data: str, out: str | None, batch_size: int, seed: int, overwrite: bool
) -> dict[str, Any]:
    """Logistic regression on frozen features, by pooling."""
    config = {"run": run, "data": data, "test_data": test_data, "protocol": "logistic regression, L-BFGS", "seed": seed}
    encoder, place = load_encoder(run), out or str(Path(run) / "probe")
    check_not_inside(run, place, "the encoder to probe")
    with open_run(place, "probe", config, overwrite=overwrite or out is None) as folder:
        train, test, described = _features(encoder, data, test_data, batch_size)
        results = {pooling: linear_probe(train[pooling], test[pooling], seed) for pooling in train}
        folder.summary = {"results": results, **described}
    return results


def check_defaults(function: Callable[..., Any], options: Mapping[str, Any], needed: str) -> None:
    """Refuse options that differ from their defaults, which would be ignored without `needed`."""
    parameters = inspect.signature(function).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            raise ConfigError(f"--{name.replace('_', '-')} is for {needed}")


def nearest_neighbours(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    k: int = 20,
    batch_size: int = 256,
    overwrite: bool = False,
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
        overwrite: replace a complete run in `out`.
        json: print one JSON object instead of lines.
    """
    config = {"run": run, "data": data, "test_data": test_data, "k": k}
    encoder, place = load_encoder(run), out or str(Path(run) / "knn")
    check_not_inside(run, place, "the encoder to measure")
    with process_group():
        with open_run(place, "knn", config, overwrite=overwrite or out is None) as folder:
            train, test, described = _features(encoder, data, test_data, batch_size)
            results = {pooling: knn(train[pooling], test[pooling], k) for pooling in train}
            folder.summary = {"results": results, **described}
        if rank() == 0:
            print_results(results, json, f"{k} nearest neighbours")


def _features(
    encoder: Encoder, data: str, test_data: str, batch_size: int
) -> tuple[dict[str, Features], dict[str, Features], dict[str, Any]]:
    """Features of both sets by pooling, computed once and kept in the cache, and what a summary says of the data."""
    sources = open_source(data), open_source(test_data)
    cache = cache_folder() / "features"
    train, test = (
        cached_features(cache, encoder.weights, encoder, source, batch_size=batch_size,
                        extra={"mean": encoder.mean, "std": encoder.std})
        for source in sources
    )  # fmt: skip
    for source in sources:
        warn_skipped(source.skipped)
    return train, test, {"data": sources[0].describe(), "test_data": sources[1].describe(), "weights": encoder.weights}
