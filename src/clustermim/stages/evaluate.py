"""The stages that measure an encoder: `clustermim probe`, `knn` and `finetune`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clustermim import evaluation
from clustermim.data import open_source
from clustermim.evaluation import FINETUNING, PROBING, EvaluationResult, FinetuneOptions, MixConfig, ProbeOptions
from clustermim.models.encoder import encoder_folder
from clustermim.options import flat
from clustermim.runs import SUMMARY, check_not_inside, open_run
from clustermim.tokenizers.token_encoder import load_encoder
from clustermim.training import Device, RunOptions, Schedule, find_device


@flat
def probe(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
    probe: ProbeOptions = ProbeOptions(),
    schedule: Schedule = PROBING,
    run_options: RunOptions = RunOptions(),
) -> EvaluationResult:
    """Linear probe of a pretrained encoder: a linear classifier of its frozen features, for both poolings.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to train the probe on; with lbfgs a tenth of them chooses the strength of its L2 penalty.
        test_data: labelled images to measure it on.
        out: the run folder to write; by default `probe` or `probe-mae` beside the encoder, replaced when run again.
    """
    given: dict[str, Any] = {"probe": probe, "schedule": schedule}
    if probe.protocol == "mae":
        place = Path(out or _home(run) / "probe-mae")
        check_not_inside(run, place, "the encoder to start from")
        # in the place of its own choosing a complete run is replaced, as the other protocol does
        again = out is None and not run_options.resume and (place / SUMMARY).exists()
        given["run_options"] = replace(run_options, overwrite=run_options.overwrite or again)
        return evaluation.linear_probe(run, data, test_data, out=place, **given)
    given["run_options"] = replace(run_options, overwrite=False)
    protocol = {"protocol": "logistic regression, L-BFGS", "seed": schedule.seed}
    config = {"run": run, "data": data, "test_data": test_data, **protocol}
    find_device(schedule.device)  # refuse a wrong one before anything is read
    return _measured("probe", config, out, run_options.overwrite, evaluation.linear_probe, **given)


def knn(
    run: str,
    data: str,
    test_data: str,
    out: str | None = None,
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
        out: the run folder to write; by default `knn` beside the encoder, replaced when run again.
        k: neighbours that vote.
        batch_size: images encoded at a time.
        device: where to compute; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    config = {"run": run, "data": data, "test_data": test_data, "k": k}
    find_device(device)  # refuse a wrong one before anything is read
    return _measured("knn", config, out, overwrite, evaluation.knn, k=k, batch_size=batch_size, device=device)


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


def _measured(
    stage: str, config: Mapping[str, Any], out: str | None, overwrite: bool,
    measure: Callable[..., EvaluationResult], **options: Any,
) -> EvaluationResult:  # fmt: skip
    """What a function measures of an encoder, in a run folder; by default one inside the encoder's."""
    encoder, place = load_encoder(config["run"]), out or str(_home(config["run"]) / stage)
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
