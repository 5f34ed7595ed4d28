"""MAE's linear probe: it learns, the heads do not disturb each other, it resumes exactly, and what bad input gets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from clustermim.data import open_source
from clustermim.evaluation.probing import Heads, default_lr, make_optimizer
from clustermim.models.encoder import load_encoder
from clustermim.results import percent
from clustermim.training import lr_at, set_lr

Command = Callable[..., int]
MAE = ("--protocol", "mae", "--batch-size", "16", "--device", "cpu")
SHORT = (*MAE, "--epochs", "4")


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
def test_it_learns_an_easy_task(
    optimizer: str,
    command: Command,
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, train, test = save_micro(), save_bright(), save_bright("test", count=50)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    words = ("probe", run, "--data", train, "--test-data", test, *MAE, "--epochs", "10", "--optimizer", optimizer)
    assert command(*words) == 0
    found, printed = summary(run / "probe-mae"), capsys.readouterr().out
    assert printed.startswith("linear probe\n")
    assert found["weights"] == load_encoder(run).weights
    for pooling in ("avg", "cls"):
        result = found["results"][pooling]
        assert (result["protocol"], result["test_images"], result["optimizer"]) == ("mae", 50, optimizer)
        assert result["accuracy"] > 0.9
        assert result["interval"][0] < result["accuracy"]
        assert re.search(rf"^{pooling} +{percent(result['accuracy'])} +", printed, re.MULTILINE)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert command(*words) == 0  # replaced when run again, as the other protocol's folder is


def test_it_comes_near_the_optimum_on_digits(command: Command, save_micro: Callable[..., Path]) -> None:
    run = save_micro(channels=1)
    data = ("--data", "digits/train?limit=400", "--test-data", "digits/test?limit=200")
    assert command("probe", run, *data) == 0
    words = ("--protocol", "mae", "--augment", "none", "--batch-size", "40", "--epochs", "20", "--device", "cpu")
    assert command("probe", run, *data, *words) == 0
    best, found = (summary(run / name)["results"] for name in ("probe", "probe-mae"))
    assert best["avg"]["protocol"] == "lbfgs"
    for pooling in ("avg", "cls"):
        assert found[pooling]["accuracy"] > best[pooling]["accuracy"] - 0.06  # 2 % is the standard error of either


def test_a_head_learns_as_if_it_were_alone(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, data = save_micro(), save_bright(classes=4)
    words = ("probe", run, "--data", data, "--test-data", data, *SHORT)
    for pooling in ("both", "avg"):
        assert command(*words, "--pooling", pooling, "--out", tmp_path / pooling) == 0
    both, alone = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("both", "avg"))
    assert list(summary(tmp_path / "avg")["results"]) == ["avg"]
    # the first head is made first, so that it begins with the same weights
    assert torch.equal(both["model.heads.avg.1.weight"], alone["model.heads.avg.1.weight"])
    assert torch.equal(both["model.heads.avg.0.running_mean"], alone["model.heads.avg.0.running_mean"])
    assert "model.heads.cls.1.weight" in both
    assert all(name.startswith(("model.heads.", "optimizer.", "generator.")) for name in both)  # no encoder


def test_two_epochs_and_two_more_give_the_same_bytes(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    data = save_bright(count=32)
    words = ("probe", save_micro(), "--data", data, "--test-data", data, *SHORT, "--out")
    assert command(*words, tmp_path / "whole") == 0
    assert command(*words, tmp_path / "part", "--stop-after", "2") == 0
    assert not (tmp_path / "part" / "summary.json").exists()
    assert command(*words, tmp_path / "part", "--resume") == 0
    whole, part = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "part"))
    assert whole.keys() == part.keys()
    assert all(torch.equal(whole[name], part[name]) for name in whole)
    for file in ("metrics.jsonl", "config.yaml"):
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_the_heads_standardise_what_they_see() -> None:
    heads = Heads(("avg",), 6, 3)
    features = 5 + 40 * torch.randn(64, 6)
    found = heads({"avg": features})["avg"]
    linear = heads.heads["avg"][1]
    standard = (features - features.mean(dim=0)) / (features.var(dim=0, correction=0) + 1e-6).sqrt()
    torch.testing.assert_close(found, standard @ linear.weight.T + linear.bias, rtol=1e-4, atol=1e-5)
    assert sum(parameter.numel() for parameter in heads.parameters()) == 6 * 3 + 3  # batch norm has none


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epochs", "4"), "--epochs is for --protocol mae"),
        (("--resume",), "--resume is for --protocol mae"),
        (("--optimizer", "sgd"), "--optimizer is for --protocol mae"),
        ((*SHORT, "--batch-size", "1"), "batch norm needs 2 images"),
        ((*SHORT, "--batch-size", "500"), "64 images, fewer than a batch of 500"),
        ((*SHORT, "--base-lr", "-1"), "learning rate"),
        ((*SHORT, "--epochs", "0"), "epochs must be at least 1"),
        ((*SHORT, "--optimizer", "adam"), "--optimizer"),
        ((*SHORT, "--test-data", "{more}"), "2 classes that the train set lacks"),
        ((*SHORT, "--data", "{large}", "--test-data", "{large}"), "are 3×16×16 and the encoder was made for 3×8×8"),
    ],
)
def test_bad_input(
    options: tuple[str, ...],
    message: str,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
) -> None:
    run, data = save_micro(), save_bright()
    known = {"more": save_bright("more", classes=4), "large": save_bright("large", size=(16, 16))}
    words = [word.format(**known) for word in options]
    assert message in refuse("probe", run, "--data", data, "--test-data", data, *words)
    assert {path.name for path in run.iterdir()} == {"encoder.json", "encoder.safetensors"}


def test_heads_do_not_go_on_with_another_encoder(
    command: Command,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
) -> None:
    run, data = save_micro(), save_bright(count=32)
    words = ("probe", run, "--data", data, "--test-data", data, *SHORT)
    assert command(*words, "--stop-after", "1") == 0
    assert "holds an unfinished run" in refuse(*words)
    other = save_micro("other", positions="learned")
    for name in ("encoder.json", "encoder.safetensors"):
        (run / name).write_bytes((other / name).read_bytes())
    assert "was started with weights" in refuse(*words, "--resume")


def test_rates_of_matrices_and_biases() -> None:
    heads = Heads(("avg", "cls"), 6, 3)
    for lr, expected in ((25.6, [25.6, 6.4]), (6.4, [6.4, 6.4]), (0.1, [0.1, 0.1])):  # MAE's own is left as it is
        optimizer = make_optimizer("lars", heads, lr)
        set_lr(optimizer, lr)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected)
        assert [{parameter.ndim for parameter in group["params"]} for group in optimizer.param_groups] == [{2}, {1}]


def test_the_rate_of_lars_goes_with_the_steps() -> None:
    peak = {steps: default_lr("lars", 10, 256, 256 * steps // 10) for steps in (70, 700, 7000, 28_000)}
    assert peak == pytest.approx({70: 64.0, 700: 6.4 * 10**0.5, 7000: 6.4, 28_000: 3.2})
    assert default_lr("lars", 90, 16_384, 1_281_167) * 16_384 / 256 == pytest.approx(6.4, rel=0.01)  # MAE's own
    assert default_lr("lars", 90, 64, 6400) * 64 == pytest.approx(default_lr("lars", 90, 16, 1600) * 16)
    assert default_lr("sgd", 90, 64, 6400) == default_lr("sgd", 10, 256, 99) == 0.3


@pytest.mark.parametrize(("peak", "moderate"), [(None, True), (25.6, False)])
def test_weights_of_separable_classes_do_not_explode(peak: float | None, moderate: bool) -> None:
    """With the rate of the rule; one that suits 400 steps is too much for 1,600."""
    batch, steps = open_source("digits/train?limit=400").read(range(400)), 1600
    assert batch.labels is not None
    features = batch.images.flatten(1).float()  # (400, 64): pixels do
    torch.manual_seed(0)
    heads = Heads(("avg",), 64, 10)
    weight = heads.heads["avg"][1].weight
    start = float(weight.detach().norm())
    peak = peak or default_lr("lars", 64, 16, 400) * 16 / 256
    optimizer = make_optimizer("lars", heads, peak)
    for step in range(steps):
        set_lr(optimizer, lr_at(step, lr=peak, total_steps=steps, warmup_steps=steps // 10))
        rows = torch.randint(400, (16,))
        optimizer.zero_grad()
        F.cross_entropy(heads({"avg": features[rows]})["avg"], batch.labels[rows]).backward()
        optimizer.step()
    assert (float(weight.detach().norm()) / start < 10_000) == moderate
