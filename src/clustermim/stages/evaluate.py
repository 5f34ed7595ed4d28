"""The stages that measure an encoder: `clustermim probe`, `knn`, `segment` and `finetune`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from clustermim import evaluation
from clustermim.data import open_source
from clustermim.errors import ConfigError
from clustermim.evaluation import FINETUNING, PROBING, EvaluationResult, FinetuneOptions, MixConfig, ProbeOptions
from clustermim.evaluation.segmentation import MAX_PATCHES, SegmentationResult
from clustermim.models.encoder import encoder_folder
from clustermim.models.predictor import Features
from clustermim.options import flat
from clustermim.results import Result
from clustermim.runs import SUMMARY, check_not_inside, open_run
from clustermim.tokenizers.token_encoder import load_encoder
from clustermim.training import Device, RunOptions, Schedule, find_device

R = TypeVar("R", bound=Result)


@flat
def probe(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    features: Features | None = None,
    probe: ProbeOptions = ProbeOptions(),
    schedule: Schedule = PROBING,
    run_options: RunOptions = RunOptions(),
) -> EvaluationResult:
    """Linear probe of a pretrained encoder: a linear classifier of its frozen features, for both poolings.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to train the probe on; with lbfgs a tenth of them chooses the strength of its L2 penalty.
        test_data: labelled images to measure it on.
        out: the run folder to write; by default `probe`, `probe-mae` or `probe-predictor` beside the encoder, replaced
            when run again.
        features: `predictor` probes what the decoder says of all patches when the encoder has seen them; by default the
            encoder's own tokens.
    """
    given: dict[str, Any] = {"probe": probe, "schedule": schedule}
    if features and probe.protocol == "mae":
        raise ConfigError("--features is for --protocol lbfgs")
    if probe.protocol == "mae":
        place = Path(out or _home(run) / "probe-mae")
        check_not_inside(run, place, "the encoder to start from")
        # in the place of its own choosing a complete run is replaced, as the other protocol does
        again = out is None and not run_options.resume and (place / SUMMARY).exists()
        given["run_options"] = replace(run_options, overwrite=run_options.overwrite or again)
        return evaluation.linear_probe(run, data, test_data, out=place, **given)
    given["run_options"] = replace(run_options, overwrite=False)
    protocol = {"protocol": "logistic regression, L-BFGS", "seed": schedule.seed}
    config = {"run": run, "data": data, "test_data": test_data, **_named(features), **protocol}
    find_device(schedule.device)  # refuse a wrong one before anything is read
    return _measured("probe", config, out, run_options.overwrite, evaluation.linear_probe, **given)


def knn(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    features: Features | None = None,
    k: int = 20,
    batch_size: int = 256,
    device: Device | None = None,
    overwrite: bool = False,
) -> EvaluationResult:
    """Classify by the nearest training images, by cosine similarity of frozen features, plain and whitened.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to look among.
        test_data: labelled images to classify.
        out: the run folder to write; by default `knn` or `knn-predictor` beside the encoder, replaced when run again.
        features: `predictor` takes what the decoder says of all patches when the encoder has seen them; by default the
            encoder's own tokens.
        k: neighbours that vote.
        batch_size: images encoded at a time.
        device: where to compute; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    config = {"run": run, "data": data, "test_data": test_data, **_named(features), "k": k}
    find_device(device)  # refuse a wrong one before anything is read
    return _measured("knn", config, out, overwrite, evaluation.knn, k=k, batch_size=batch_size, device=device)


def segment(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    k: int = 20,
    max_patches: int = MAX_PATCHES,
    batch_size: int = 64,
    seed: int = 0,
    device: Device | None = None,
    overwrite: bool = False,
) -> SegmentationResult:
    """Segment images by frozen patch features, with a linear classifier and with nearest neighbours: mean IoU.

    Args:
        run: the folder of a pretrained encoder.
        data: images with masks to learn from, folder:IMAGES?masks=FOLDER or textures:.
        test_data: images with masks to measure on.
        out: the run folder to write; by default `segment` beside the encoder, replaced when run again.
        k: neighbours that vote.
        max_patches: train patches to learn from, drawn at random where there are more.
        batch_size: images encoded at a time.
        seed: of the train patches, of the tenth of train that is held out, and of the bootstrap.
        device: where to compute; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    options: dict[str, Any] = {"k": k, "max_patches": max_patches, "seed": seed}
    config = {"run": run, "data": data, "test_data": test_data, **options}
    find_device(device)  # refuse a wrong one before anything is read
    options |= {"batch_size": batch_size, "device": device}
    return _measured("segment", config, out, overwrite, evaluation.segment, **options)


@flat
def finetune(
    run: str,
    data: str,
    test_data: str,
    out: str,
    finetuning: FinetuneOptions = FinetuneOptions(),
    mix: MixConfig = MixConfig(),
    schedule: Schedule = FINETUNING,
    run_options: RunOptions = RunOptions(),
) -> EvaluationResult:
    """Fine-tune a pretrained encoder with a linear head on labelled images, and measure it on others.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to train on; of another size than in pretraining, positions are interpolated.
        test_data: labelled images to measure on, after every epoch; the last epoch counts.
        out: the run folder to write.
    """
    check_not_inside(run, out, "the encoder to start from")
    given: dict[str, Any] = {"finetuning": finetuning, "mix": mix, "schedule": schedule, "run_options": run_options}
    return evaluation.finetune(run, data, test_data, out=out, **given)


def _named(features: Features | None) -> dict[str, Any]:
    """The part of a configuration that says which features are measured, where they are not the encoder's."""
    return {"features": features} if features else {}


def _measured(
    stage: str, config: Mapping[str, Any], out: str | None, overwrite: bool, measure: Callable[..., R], **options: Any
) -> R:
    """What a function measures of an encoder, in a run folder; by default one inside the encoder's."""
    features = config.get("features")
    encoder = load_encoder(config["run"], features)
    place = out or str(_home(config["run"]) / "-".join(filter(None, (stage, features))))
    check_not_inside(config["run"], place, "the encoder to measure")
    with open_run(place, stage, dict(config), overwrite=overwrite or out is None) as folder:
        train, test = open_source(config["data"]), open_source(config["test_data"])
        result = measure(encoder, train, test, **options)
        described = {"data": train.describe(), "test_data": test.describe(), "weights": encoder.weights}
        folder.summary = {"results": result.to_dict(), **described}
    return result


def _home(run: str) -> Path:
    """The folder of an encoder; of one on the hub, a folder of its name in this one."""
    on_hub = run.startswith("hf:") and not Path(run.removeprefix("hf:")).is_dir()
    return Path(re.sub(r"\W+", "-", run)) if on_hub else encoder_folder(run)
