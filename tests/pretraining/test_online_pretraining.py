"""Pretraining with clusters that learn: a step by hand, learning, exact resume, other starts, and bad input."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clustermim.cli import main
from clustermim.data import open_source, to_float
from clustermim.data.transforms import normalize
from clustermim.errors import UserError
from clustermim.models import load_encoder
from clustermim.models.masking import Mask
from clustermim.pretraining import Architecture, Masking, Objective, make_task, pretrain
from clustermim.pretraining.online import TEACHER, OnlineModel, OnlineModeling
from clustermim.runs import read_summary
from clustermim.targets import TargetOptions
from clustermim.targets.online import OnlineOptions
from clustermim.training import CHECKPOINT, SeededBatches

DATA = "textures:?images=48&grid=2&patch=4"
FEW: dict[str, Any] = {"prototypes": 8, "batch_size": 16, "patch_size": 4, "device": "cpu", "mask_ratio": 0.5}


def prepared(layout: Any = "mae", cross: bool = False, **options: Any) -> tuple[OnlineModeling, Any]:
    """A task that is begun, and its first batch."""
    source = open_source(DATA)
    architecture = Architecture(patch_size=4, layout=layout, cross_decoder=cross)
    given = TargetOptions(), Objective(), 0, None, OnlineOptions(prototypes=8, **options)
    task = make_task(source, "online", architecture, Masking(mask_ratio=0.5), *given)
    assert isinstance(task, OnlineModeling)
    task.target.start(source, 0)
    task.model.train()
    return task, next(SeededBatches(source, 16, 0, task.view, task.augment).make(0, 0))


@pytest.mark.parametrize(("layout", "cross"), [("mae", False), ("mae", True), ("beit", False)])
def test_a_step_written_out(layout: Any, cross: bool) -> None:
    task, batch = prepared(layout, cross)
    before = deepcopy(task.model)
    found = task.step(task.model, batch)
    images = to_float(batch.images)
    inputs = normalize(images, *task.stats)
    assigned = before.target.assign(images)
    head = before.net.head if layout == "beit" else before.net.decoder_pred  # type: ignore[union-attr]
    seen: list[torch.Tensor] = []
    head.register_forward_hook(lambda module, given, out: seen.append(given[0]))  # type: ignore[union-attr, arg-type]
    before.net(inputs, batch.mask)
    vectors, directions = seen[0].double(), head.weight.double()  # type: ignore[union-attr, operator]
    cosines = (vectors @ directions.T) / vectors.norm(dim=2, keepdim=True) / directions.norm(dim=1)  # (B, m, K)
    logs = (cosines / 0.12).log_softmax(2)
    total, count = 0.0, 0
    for image, places in enumerate(batch.mask.masked.tolist()):
        for number, place in enumerate(places):
            total -= float((assigned.values[place, image].double() * logs[image, number]).sum().detach())
            count += 1
    assert found["loss"].item() == pytest.approx(total / count + assigned.loss.item(), rel=1e-4)
    assert found["clustering_loss"].item() == pytest.approx(assigned.loss.item(), rel=1e-5)
    found["loss"].backward()
    without = {name.partition(".")[0] for name, value in task.model.named_parameters() if value.grad is None}
    assert {name for name, value in task.model.target.named_parameters() if value.grad is not None} == {"prototypes"}
    assert without <= {"net", "target"}
    groups = task.optimizer(1e-3, 0.05).param_groups
    names = [name for group in groups for name in group["names"]]
    assert "target.prototypes" in names
    assert not any("teacher" in name for name in names)


def test_it_learns(tmp_path: Path) -> None:
    longer = {**FEW, "batch_size": 32, "base_lr": 0.02}
    encoder = pretrain("digits/train?limit=320", "online", epochs=8, augment="none", out=tmp_path / "run", **longer)
    epochs = [line for line in encoder.history if "epoch_loss" in line]
    student = [line["epoch_loss"] - line["epoch_clustering_loss"] for line in epochs]
    assert student[-1] < student[0] - 0.2
    assert epochs[-1]["epoch_accuracy"] > 2 * epochs[0]["epoch_accuracy"]
    assert all(line["epoch_used"] == 1 for line in epochs)
    assert set(epochs[0]) >= {"clustering_loss", "used", "perplexity", "confidence"}
    teacher = load_encoder(tmp_path / "run" / TEACHER)
    assert load_encoder(tmp_path / "run").weights == encoder.weights != teacher.weights
    state = load_file(tmp_path / "run" / CHECKPOINT)
    assert torch.equal(teacher.backbone.norm.weight, state["model.target.teacher.backbone.norm.weight"])  # type: ignore[arg-type, union-attr]
    assert torch.equal(encoder.backbone.norm.weight, state["model.net.encoder.norm.weight"])  # type: ignore[arg-type, union-attr]
    assert not any("teacher" in name for name in state if name.startswith("optimizer"))


def test_resumed_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--target online --prototypes 8 --queue-images 20 --batch-size 16 --patch-size 4 --epochs 3 --device cpu"
    command = ["pretrain", "--data", DATA, *words.split(), "--mask-ratio", "0.5", "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    with pytest.raises(SystemExit):
        main([*command, str(tmp_path / "parts"), "--stop-after", "1"])
    capsys.readouterr()
    assert main([*command, str(tmp_path / "parts"), "--resume", "--queue-images", "24"]) == 2
    errors = capsys.readouterr().err
    assert "queue_images" in errors
    assert len([line for line in errors.splitlines() if line.startswith("error: ")]) == 1
    assert main([*command, str(tmp_path / "parts"), "--resume"]) == 0
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "teacher/encoder.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    first, second = (load_file(tmp_path / name / CHECKPOINT) for name in ("whole", "parts"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {"queue", "means", "variance", "axes", "prototypes"} <= {
        name.removeprefix("model.target.") for name in first if name.startswith("model.target.")
    }
    assert (tmp_path / "whole" / "reconstructions.png").exists()
    flops = [read_summary(tmp_path / name)["results"]["flops"] for name in ("whole", "parts")]
    assert flops[0] == flops[1] > 0


def test_from_other_runs(tmp_path: Path) -> None:
    """Teacher and student start from the weights of a run, whatever it predicted; the head starts anew."""
    pretrain(DATA, "pixels", epochs=1, batch_size=16, patch_size=4, device="cpu", out=tmp_path / "mae")
    pretrain(DATA, "online", epochs=1, init_from=tmp_path / "mae", out=tmp_path / "online", **FEW)
    for name in ("mae", "online"):
        parts = Architecture(patch_size=4), Masking(), TargetOptions(), Objective(), 0, str(tmp_path / name)
        task = make_task(open_source(DATA), "online", *parts, OnlineOptions(prototypes=5))
        assert isinstance(task.model, OnlineModel)
        state, kept = load_file(tmp_path / name / "decoder.safetensors"), load_encoder(tmp_path / name).backbone
        for encoder in (task.net.encoder, task.model.target.teacher.backbone):
            assert all(torch.equal(value, kept.state_dict()[key]) for key, value in encoder.state_dict().items())
        mine = {key: value for key, value in task.net.state_dict().items() if not key.startswith("encoder.")}
        assert torch.equal(mine["decoder_embed.weight"], state["decoder_embed.weight"])
        assert mine["decoder_pred.weight"].shape == (5, 96)
    with pytest.raises(UserError, match="does not fit this model"):
        pretrain(DATA, "online", epochs=1, init_from=tmp_path / "mae", cross_decoder=True, **FEW)


def test_a_collapse_is_told_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def alike(self: Any, images: torch.Tensor, learn: bool) -> torch.Tensor:
        return torch.ones(len(images), *self.means.shape) / 8

    start = "clustermim.targets.online.OnlineTarget.start"
    monkeypatch.setattr(start, lambda self, source, seed: torch.nn.init.ones_(self.prototypes))
    monkeypatch.setattr("clustermim.targets.online.OnlineTarget.points", alike)
    pretrain(DATA, "online", epochs=3, **FEW | {"prototypes": 32})
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert "the assignments have collapsed to 1 of 32 prototypes" in line
    assert "--init-from" in line


def test_numbers_that_break_end_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clustermim.targets.online.sinkhorn", lambda similarity, *more: similarity * float("nan"))
    words = "--target online --prototypes 8 --batch-size 16 --patch-size 4 --epochs 1 --device cpu --mask-ratio 0.5"
    assert main(["pretrain", "--data", DATA, "--out", str(tmp_path / "run"), *words.split()]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert "training broke at step 1" in line
    assert "clustering_loss nan" in line
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--prototypes 200", "--prototypes 200 are more than the 64 patches that are assigned at a time: lower it, or"),
        ("--teacher-momentum 1", "--teacher-momentum 1 must be at least 0 and below 1"),
        ("--layout mixmae --mask-ratio 0.5", "--target online is for --layout mae and beit, not mixmae"),
        ("--layout mage", "--target online is for --layout mae and beit, not mage"),
        ("--uniformity 0.01", "--uniformity is not for --target online"),
        ("--cache-tokens true --augment none", "--cache-tokens is not for --target online"),
        ("--teacher run:somewhere", "--teacher is for --target features, not online"),
        ("--label-smoothing 0.1", "--label-smoothing is for --target tokens, not online"),
        ("--target pixels --queue-images 3", "--queue-images is for --target online, not pixels"),
        ("--whiten 999", "--whiten 999 is more than the 128 numbers"),
    ],
)
def test_bad_input(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = "--batch-size 16 --patch-size 4 --epochs 1 --device cpu --mask-ratio 0.5 --target online"
    command = ["pretrain", "--data", DATA, "--out", str(tmp_path / "run"), *short.split(), *words.split()]
    assert main(command) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "run").exists()


def test_a_step_takes_the_whole_batch() -> None:
    task, batch = prepared()
    assert task.split(batch, 2) == [(1.0, batch)]
    assert isinstance(batch.mask, Mask)
