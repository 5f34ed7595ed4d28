"""Fine-tuning end to end: it learns, it resumes exactly, others can load it, and what bad input gets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clustermim.data import open_source, to_float
from clustermim.data.transforms import normalize
from clustermim.evaluation.finetuning import Classifier, build_encoder
from clustermim.evaluation.labels import open_pair
from clustermim.models.encoder import load_encoder
from clustermim.models.vit import resize_positions
from clustermim.results import percent
from clustermim.training import adamw, layer_groups, set_lr
from timm_peer import import_timm

Command = Callable[..., int]
PLAIN = ("--augment", "none", "--mixup", "0", "--cutmix", "0", "--erasing", "0", "--randaugment-ops", "0")
SHORT = ("--batch-size", "16", "--epochs", "4", "--device", "cpu")
FILES = ("model.safetensors", "encoder.safetensors", "checkpoint.safetensors", "metrics.jsonl", "config.yaml")


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())["results"]
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("pooling", ["avg", "cls"])
def test_it_learns_an_easy_task(
    pooling: str,
    command: Command,
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out = save_micro(), tmp_path / "ft"
    train, test = save_bright(count=64), save_bright("test", count=50)
    words = ("finetune", run, "--data", train, "--test-data", test, "--out", out, "--pooling", pooling, *SHORT, *PLAIN)
    assert command(*words, "--base-lr", "0.03") == 0
    found = results(out)
    assert found["accuracy"] > 0.9
    assert found["interval"][0] < found["accuracy"] <= found["interval"][1]
    assert (found["test_images"], found["protocol"], found["pooling"], found["steps"]) == (50, "finetune", pooling, 16)
    assert [line["test_accuracy"] for line in lines(out) if "test_accuracy" in line][-1] == found["accuracy"]
    assert len([line for line in lines(out) if "test_accuracy" in line]) == 4
    printed = capsys.readouterr().out
    assert printed.startswith("fine-tuned\n")
    assert re.search(rf"^{pooling} +{percent(found['accuracy'])} +", printed, re.MULTILINE)
    # the encoder of the result is an encoder like any other
    assert command("knn", out, "--data", train, "--test-data", test, "--k", "3") == 0
    assert not torch.equal(load_encoder(out).backbone.norm.weight, load_encoder(run).backbone.norm.weight)


def test_timm_loads_it_and_predicts_the_same(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    data, out = save_bright(count=32, classes=3), tmp_path / "ft"
    words = ("--data", data, "--test-data", data, "--out", out, *SHORT, *PLAIN, "--base-lr", "0.03")
    assert command("finetune", save_micro(), *words) == 0
    record = json.loads((out / "model.json").read_text())
    assert (record["pooling"], record["class_names"]) == ("avg", ["0", "1", "2"])
    theirs = import_timm().models.vision_transformer.VisionTransformer(
        img_size=record["image_size"],
        patch_size=record["patch_size"],
        embed_dim=128,
        depth=4,
        num_heads=4,
        num_classes=len(record["class_names"]),
        global_pool=record["pooling"],
        fc_norm=False,
    )
    weights = load_file(out / "model.safetensors")
    theirs.load_state_dict(weights, strict=True)
    ours = Classifier(load_encoder(out), record["class_names"], "avg")
    ours.head.load_state_dict({"weight": weights["head.weight"], "bias": weights["head.bias"]})
    batch = open_source(data).read(range(32))
    with torch.no_grad():
        images = normalize(to_float(batch.images), record["mean"], record["std"])
        scores = theirs.eval()(images)
        torch.testing.assert_close(scores, ours.eval()(to_float(batch.images)), rtol=1e-4, atol=1e-5)
    assert scores.std() > 1e-3  # and they say something
    assert float((scores.argmax(dim=1) == batch.labels).float().mean()) == results(out)["accuracy"]


@pytest.mark.parametrize(
    "options",
    [
        ("--drop-path", "0.3"),  # and all that is on by default
        ("--accumulate", "2", "--from-scratch", "--randaugment-ops", "0", "--augment", "pad-crop"),
    ],
    ids=" ".join,
)
def test_two_epochs_and_two_more_give_the_same_bytes(
    options: tuple[str, ...],
    command: Command,
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
) -> None:
    data = save_bright(count=32)
    words = ("finetune", save_micro(), "--data", data, "--test-data", data, *SHORT, *options, "--out")
    assert command(*words, tmp_path / "whole") == 0
    assert command(*words, tmp_path / "part", "--stop-after", "2") == 0
    assert not (tmp_path / "part" / "summary.json").exists()
    assert command(*words, tmp_path / "part", "--resume") == 0
    # the checkpoint's header holds the seconds that training took; its tensors do not
    whole, part = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "part"))
    assert {name: tensor.numpy().tobytes() for name, tensor in whole.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in part.items()
    }
    for file in FILES:
        if file != "checkpoint.safetensors":
            assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_from_scratch_starts_from_new_weights(save_micro: Callable[..., Path]) -> None:
    pretrained = load_encoder(save_micro())
    torch.manual_seed(0)
    tuned = build_encoder(pretrained, (3, 8, 8), 0.2, from_scratch=False)
    new = build_encoder(pretrained, (3, 8, 8), 0.2, from_scratch=True)
    for name, weight in pretrained.backbone.state_dict().items():
        assert torch.equal(tuned.backbone.state_dict()[name], weight)
    assert new.backbone.state_dict().keys() == pretrained.backbone.state_dict().keys()
    assert not torch.equal(new.backbone.blocks[0].mlp.fc1.weight, pretrained.backbone.blocks[0].mlp.fc1.weight)
    assert [block.drop_path for block in tuned.backbone.blocks] == pytest.approx([0, 0.2 / 3, 0.4 / 3, 0.2])


def test_from_scratch_says_so(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    data, out = save_bright(count=32), tmp_path / "ft"
    words = ("--data", data, "--test-data", data, "--out", out, *SHORT, *PLAIN, "--from-scratch")
    assert command("finetune", save_micro(), *words) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["results"]["protocol"], summary["weights"]) == ("from scratch", None)
    assert "layer_decay: 1.0" in (out / "config.yaml").read_text()


def test_every_layer_has_its_rate(save_micro: Callable[..., Path]) -> None:
    """Layer l of n + 1 learns at decay^(n + 1 − l): the formula of BEiT's and MAE's recipes."""
    net = Classifier(
        build_encoder(load_encoder(save_micro(positions="learned")), (3, 8, 8), 0.0, False), "abcde", "avg"
    )
    optimizer = adamw(layer_groups(net, 0.75, 0.05), 1.0, (0.9, 0.999))
    set_lr(optimizer, 2e-3)
    names = {parameter: name for name, parameter in net.named_parameters()}
    seen = set()
    for group in optimizer.param_groups:
        assert group["betas"] == (0.9, 0.999)
        for parameter in group["params"]:
            name = names[parameter]
            layer = 5 if name.startswith(("head.", "encoder.backbone.norm.")) else 0
            if name.startswith("encoder.backbone.blocks."):
                layer = 1 + int(name.split(".")[3])
            assert group["lr"] == pytest.approx(2e-3 * 0.75 ** (5 - layer)), name
            seen.add(name)
    assert seen == set(names.values())


@pytest.mark.parametrize(("channels", "size"), [(1, (8, 8)), (5, (8, 12))])
def test_other_channels_and_shapes(
    channels: int,
    size: tuple[int, int],
    command: Command,
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, data = save_micro(channels=channels, size=size), save_bright(count=32, channels=channels, size=size)
    words = ("--data", data, "--test-data", data, "--out", tmp_path / "ft", *SHORT, "--epochs", "1")
    assert command("finetune", run, *words) == 0
    assert f"leaves saturation out for images of {channels} channels" in " ".join(capsys.readouterr().err.split())
    assert load_encoder(tmp_path / "ft").image_size == size


def test_another_resolution(
    command: Command, save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, data, out = save_micro(), save_bright(count=32, size=(16, 12)), tmp_path / "ft"
    words = ("--data", data, "--test-data", data, "--out", out, *SHORT, *PLAIN, "--base-lr", "0.03")
    assert command("finetune", run, *words) == 0
    assert results(out)["accuracy"] > 0.9
    positions = load_encoder(run).backbone.pos_embed.detach()
    expected = resize_positions(positions, (2, 2), (4, 3))
    torch.testing.assert_close(
        load_encoder(out).backbone.pos_embed.detach(), expected
    )  # fixed ones stay what they were


def test_classes_are_matched_by_name(
    command: Command, save_micro: Callable[..., Path], tmp_path: Path, encode: Callable[..., bytes]
) -> None:
    for split, names in (("train", ("dark", "grey", "light")), ("test", ("grey", "light"))):
        for name in names:
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(8):
                shade = {"dark": 10, "grey": 120, "light": 240}[name] + number
                (folder / f"{number}.png").write_bytes(encode(np.full((8, 8, 3), shade, np.uint8)))
    data = open_pair(f"folder:{tmp_path / 'train'}", f"folder:{tmp_path / 'test'}")
    assert data.numbers.tolist() == [1, 2]
    assert data.train.class_names == ("dark", "grey", "light")


def test_data_that_cannot_be(
    refuse: Callable[..., str], save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, good, out = save_micro(), save_bright(), tmp_path / "ft"
    np.savez(tmp_path / "nolabels.npz", images=np.zeros((20, 3, 8, 8), np.uint8))
    np.savez(tmp_path / "one.npz", images=np.zeros((20, 3, 8, 8), np.uint8), labels=np.zeros(20, int))
    unlabelled, one = (f"npz:{tmp_path / name}.npz?layout=nchw" for name in ("nolabels", "one"))
    for train, test, message in (
        (unlabelled, good, "has no labels"),
        (good, unlabelled, "has no labels"),
        (good, save_bright("more", classes=4), "2 classes that the train set lacks: 2, 3"),
        (one, one, "are of one class"),
        (good, save_bright("large", size=(16, 16)), "are 3×8×8 and those of"),
        (*[save_bright("odd", size=(10, 10))] * 2, "do not divide into patches of 4"),
        (*[save_bright("grey", channels=1)] * 2, "have 1 channels and the encoder was made for 3"),
        (*[save_bright("few", count=10)] * 2, "10 images, fewer than a batch of 16"),
    ):
        assert message in refuse("finetune", run, "--data", train, "--test-data", test, "--out", out, *SHORT)
        assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mixup", "-1"), "--mixup -1.0"),
        (("--cutmix", "-1"), "--cutmix -1.0"),
        (("--label-smoothing", "1"), "--label-smoothing 1.0"),
        (("--erasing", "2"), "--erasing 2.0"),
        (("--randaugment-ops", "99"), "--randaugment-ops 99"),
        (("--randaugment-ops", "2", "--randaugment-magnitude", "30"), "--randaugment-magnitude 30"),
        (("--layer-decay", "0"), "--layer-decay 0.0"),
        (("--layer-decay", "1.5"), "--layer-decay 1.5"),
        (("--drop-path", "1"), "drop_path"),
        (("--pooling", "max"), "--pooling"),
        (("--epochs", "0"), "epochs must be at least 1"),
        (("--accumulate", "3"), "does not divide into 3 parts"),
        (("--base-lr", "0"), "learning rate"),
        (("--clip", "0"), "clipped to a positive norm"),
        (("--resume", "--overwrite"), "choose one"),
    ],
)
def test_options_that_cannot_be(
    options: tuple[str, ...],
    message: str,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
) -> None:
    data, out = save_bright(), tmp_path / "ft"
    words = ("--data", data, "--test-data", data, "--out", out, *SHORT, *PLAIN)
    assert message in refuse("finetune", save_micro(), *words, *options)
    assert not out.exists()


def test_folders_that_cannot_be(
    command: Command,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
) -> None:
    run, data, out = save_micro(), save_bright(count=32), tmp_path / "ft"
    words = ("--data", data, "--test-data", data, *SHORT, *PLAIN)
    assert "holds no pretrained encoder" in refuse("finetune", tmp_path / "nowhere", *words, "--out", out)
    assert "holds the encoder to start from" in refuse("finetune", run, *words, "--out", run, "--overwrite")
    assert "holds the encoder to start from" in refuse("finetune", run, *words, "--out", tmp_path, "--overwrite")
    assert (run / "encoder.safetensors").exists()

    assert command("finetune", run, *words, "--out", out, "--stop-after", "1") == 0
    assert "holds an unfinished run" in refuse("finetune", run, *words, "--out", out)
    assert "started with mixup 0.0, not 0.5" in refuse(
        "finetune", run, *words, "--out", out, "--resume", "--mixup", "0.5"
    )
    checkpoint = (out / "checkpoint.safetensors").read_bytes()
    (out / "checkpoint.safetensors").write_bytes(checkpoint[:-9])
    assert "truncated" in refuse("finetune", run, *words, "--out", out, "--resume")
    (out / "checkpoint.safetensors").write_bytes(checkpoint)
    assert command("finetune", run, *words, "--out", out, "--resume") == 0
    assert "holds a complete run" in refuse("finetune", run, *words, "--out", out)

    weights = (run / "encoder.safetensors").read_bytes()
    (run / "encoder.safetensors").write_bytes(weights[:-5])
    assert "truncated or was changed" in refuse("finetune", run, *words, "--out", tmp_path / "other")
