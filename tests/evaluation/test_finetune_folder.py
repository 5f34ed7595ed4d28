"""What fine-tuning begins with and what it leaves: the weights of the run or none of them, and a folder others read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clustermim.evaluation import Classifier
from clustermim.evaluation.labels import Pooling
from clustermim.models.encoder import load_encoder
from timm_peer import import_timm

Command = Callable[..., int]
PLAIN = ("--augment", "none", "--mixup", "0", "--cutmix", "0", "--erasing", "0", "--randaugment-ops", "0")
SHORT = ("--batch-size", "16", "--epochs", "1", "--device", "cpu", *PLAIN)


def other_weights(run: Path, folder: Path) -> Path:
    """The same encoder with other weights, of the same normalisation."""
    encoder = load_encoder(run)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    encoder.save(folder)
    return folder


def distance(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest difference of two encoders' weights."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_from_scratch_does_not_look_at_the_weights(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, data = save_micro(), save_bright(count=32)
    other = other_weights(run, tmp_path / "other")
    for options, alike in ((("--from-scratch",), True), ((), False)):
        for folder in (run, other):
            out = tmp_path / f"{folder.name}-{alike}"
            assert command("finetune", folder, "--data", data, "--test-data", data, "--out", out, *SHORT, *options) == 0
        for file in ("model.safetensors", "encoder.safetensors", "metrics.jsonl"):
            first, second = (tmp_path / f"{folder.name}-{alike}" / file for folder in (run, other))
            assert (first.read_bytes() == second.read_bytes()) == alike, file


def test_it_starts_from_the_weights_of_the_run(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, data = save_micro(), save_bright(count=32)
    before = load_file(run / "encoder.safetensors")
    tiny = (*SHORT, "--base-lr", "1e-9")  # two steps of AdamW move a weight by about their rate
    for name, options in (("tuned", ()), ("new", ("--from-scratch",))):
        words = ("finetune", run, "--data", data, "--test-data", data, "--out", tmp_path / name)
        assert command(*words, *tiny, *options) == 0
    assert distance(load_file(tmp_path / "tuned" / "encoder.safetensors"), before) < 1e-7
    assert distance(load_file(tmp_path / "new" / "encoder.safetensors"), before) > 0.05


@pytest.mark.parametrize("pooling", ["avg", "cls"])
def test_timm_gives_the_same_scores(
    pooling: Pooling, command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, out = save_micro(channels=5, size=(8, 12)), tmp_path / "ft"
    data = save_bright(count=32, channels=5, size=(8, 12), classes=3)
    words = ("--data", data, "--test-data", data, "--out", out, "--pooling", pooling, *SHORT, "--base-lr", "0.03")
    assert command("finetune", run, *words) == 0
    weights = load_file(out / "model.safetensors")
    theirs = (
        import_timm()
        .models.vision_transformer.VisionTransformer(
            img_size=(8, 12),
            patch_size=4,
            in_chans=5,
            embed_dim=128,
            depth=4,
            num_heads=4,
            num_classes=3,
            global_pool={"avg": "avg", "cls": "token"}[pooling],
            fc_norm=False,
        )
        .eval()
    )
    theirs.load_state_dict(weights, strict=True)
    ours = Classifier(load_encoder(out), ("a", "b", "c"), pooling).eval()
    ours.head.load_state_dict({name: weights[f"head.{name}"] for name in ("weight", "bias")})
    images = torch.randn(6, 5, 8, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = ours(images, normalized=True), theirs(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.std(dim=0).min() > 1e-3  # the images differ in it, so that equal scores mean something


def test_other_stages_take_the_folder(
    command: Command,
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, out = save_bright(count=48), tmp_path / "ft"
    pair = ("--data", data, "--test-data", data)
    assert command("finetune", save_micro(), *pair, "--out", out, *SHORT, "--base-lr", "0.03") == 0
    for stage in (("probe",), ("knn", "--k", "5")):
        capsys.readouterr()
        assert command(stage[0], out, *pair, *stage[1:], "--json") == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["avg"]["accuracy"] > 0.9
    assert command("export", out, "--to", "timm", "--out", tmp_path / "timm") == 0
    exported, encoder = (load_file(path) for path in (tmp_path / "timm/model.safetensors", out / "encoder.safetensors"))
    assert distance(exported, encoder) == 0  # and no head
    assert distance({k: v for k, v in load_file(out / "model.safetensors").items() if k in encoder}, encoder) == 0


def test_what_the_summary_says(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, data, test, out = save_micro(), save_bright(count=40), save_bright("test", count=50), tmp_path / "ft"
    assert command("finetune", run, "--data", data, "--test-data", test, "--out", out, *SHORT, "--epochs", "2") == 0
    summary = json.loads((out / "summary.json").read_text())
    results = summary["results"]
    low, high = results["interval"]
    assert 0 <= low <= results["accuracy"] <= high <= 1
    assert results["accuracy"] * 50 == pytest.approx(round(results["accuracy"] * 50))
    assert results["training_seconds"] >= 0
    assert results["images_per_second"] > 0
    expected = {"protocol": "finetune", "pooling": "avg", "steps": 4, "train_images": 40, "test_images": 50}
    assert expected.items() <= results.items()
    assert summary["weights"] == load_encoder(run).weights
    assert results["parameters"] == sum(tensor.numel() for tensor in load_file(out / "model.safetensors").values())
