"""Pretraining of no epochs: the encoder that every other is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clustermim.cli import main
from clustermim.data import channel_stats, open_source
from clustermim.errors import ConfigError
from clustermim.evaluation import finetune, knn, linear_probe
from clustermim.models import load_encoder
from clustermim.pretraining import Architecture, Masking, Objective, make_task, pretrain
from clustermim.runs import read_summary
from clustermim.studies import read_study, run_study
from clustermim.targets import TargetOptions

DATA = "textures:?images=64&grid=4&patch=4"


@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_what_a_training_starts_from(seed: int) -> None:
    source = open_source(DATA)
    parts = Architecture(patch_size=4), Masking(), TargetOptions(), Objective()
    task = make_task(source, "pixels", *parts, seed)
    untrained = pretrain(source, epochs=0, seed=seed)
    assert untrained.weights == task.encoder([]).weights
    assert untrained.weights != pretrain(source, epochs=0, seed=seed + 1).weights
    assert (untrained.mean, untrained.std) == channel_stats(source)
    assert untrained.history == []
    before = {name: value.clone() for name, value in task.model.encoder.state_dict().items()}
    trained = pretrain(source, epochs=1, seed=seed, batch_size=32, base_lr=1e-9, device="cpu")
    for name, value in trained.backbone.state_dict().items():  # at no learning rate to speak of
        torch.testing.assert_close(value, before[name], atol=1e-7, rtol=0)


def test_the_targets_make_no_difference_to_it() -> None:
    assert pretrain(DATA, "hog", epochs=0).weights == pretrain(DATA, "pixels", layout="beit", epochs=0).weights


def test_the_stage_writes_a_run_that_is_measured(tmp_path: Path) -> None:
    out, labelled = tmp_path / "untrained", ("digits/train?limit=200", "digits/test?limit=60")
    assert main(["pretrain", "--data", labelled[0], "--target", "pixels", "--epochs", "0", "--out", str(out)]) == 0
    assert load_encoder(out).weights == pretrain(labelled[0], epochs=0).weights
    summary = read_summary(out)["results"]
    assert (summary["steps"], summary["training_seconds"]) == (0, 0.0)
    assert (out / "metrics.jsonl").read_bytes() == b""
    assert linear_probe(out, *labelled).avg.accuracy > 0.3  # type: ignore[union-attr]
    assert knn(out, *labelled).avg is not None
    assert finetune(out, *labelled, epochs=1, batch_size=50, randaugment_ops=0, device="cpu").accuracy >= 0


def test_it_is_a_row_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        """
title: controls
parts:
  train: {data: "digits/train?limit=120", target: pixels, batch_size: 60, device: cpu}
  measure: {data: "digits/train?limit=120", test_data: "digits/test?limit=60"}
stages:
  - {name: trained, stage: pretrain, use: train, options: {epochs: 1}}
  - {name: untrained, stage: pretrain, use: train, options: {epochs: 0}}
  - {name: knn, stage: knn, use: measure, grid: {run: ["@trained", "@untrained"]}}
table:
  rows: {MAE: trained, untrained: untrained}
  columns:
    kNN: {stage: knn, value: avg.accuracy, percent: true}
    whitened: {stage: knn, value: avg.whitened.accuracy, percent: true, optional: true}
    loss: {value: loss, optional: true}
""",
        encoding="utf-8",
    )
    rows = run_study(read_study(tmp_path / "study.yaml"), tmp_path / "runs").rows
    measured = [[name for name, values in row.values.items() if values] for row in rows]
    assert measured == [["kNN", "whitened", "loss"], ["kNN", "whitened"]]


def test_fewer_than_none() -> None:
    with pytest.raises(ConfigError, match="epochs must be at least 1, not -1"):
        pretrain(DATA, epochs=-1, batch_size=32)
