"""Registers: tokens in plain loops, all layouts, saving, and what bad input gets. Exports are in test_export.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clustermim as cm
from clustermim.cli import main
from clustermim.errors import ConfigError, RunError
from clustermim.models import BACKBONES, Encoder, ViT, build_backbone
from clustermim.tokenizers import KMeansTokenizer
from clustermim.training.optimizer import layer_groups
from plain_vit import Weights, embedded, encoded

DATA = "textures:?images=48&grid=4&patch=4"
SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 16, "patch_size": 4, "device": "cpu"}


def make(registers: int) -> ViT:
    torch.manual_seed(0)
    vit = build_backbone("micro", (16, 16), 4, registers=registers).eval()
    assert isinstance(vit, ViT)
    return vit


def in_loops(image: Tensor, places: list[int], weights: Weights) -> list[Tensor]:
    """What the first block receives of a normalised image: class token, registers, patches."""
    first = weights["encoder.cls_token"][0, 0] + weights["encoder.pos_embed"][0, 0]
    return [first, *weights["encoder.reg_token"][0], *(embedded(image, place, weights) for place in places)]


def test_tokens_in_plain_loops() -> None:
    vit = make(3)
    weights = {f"encoder.{name}": value for name, value in vit.state_dict().items()}
    images, keep = torch.randn(2, 3, 16, 16), torch.tensor([[0, 3, 5], [1, 2, 15]])
    with torch.no_grad():
        whole, part = vit(images), vit(images, keep)
        hidden = vit.encode_masked(images, keep, torch.tensor([[7], [8]]), torch.zeros(1, 1, 128))
        below = vit.tokens_of_layer(images, 0)
    for row, image in enumerate(images):
        plain = encoded(in_loops(image, list(range(16)), weights), weights)
        torch.testing.assert_close(whole[row], torch.cat([plain[:1], plain[4:]]), rtol=1e-4, atol=1e-4)
        plain = encoded(in_loops(image, keep[row].tolist(), weights), weights)
        torch.testing.assert_close(part[row], torch.cat([plain[:1], plain[4:]]), rtol=1e-4, atol=1e-4)
        position = weights["encoder.pos_embed"][0, 8 + row]
        plain = encoded([*in_loops(image, keep[row].tolist(), weights), position], weights)
        torch.testing.assert_close(hidden[row], plain[-1:], rtol=1e-4, atol=1e-4)
        first = in_loops(image, list(range(16)), weights)
        torch.testing.assert_close(below[row], torch.stack([first[0], *first[4:]]), rtol=1e-4, atol=1e-5)


def test_the_others_start_as_ever() -> None:
    without, some = make(0).state_dict(), make(4).state_dict()
    assert set(some) - set(without) == {"reg_token"}
    assert all(torch.equal(value, some[name]) for name, value in without.items())
    assert "registers" not in Encoder(make(0), "micro", [0.5] * 3, [0.25] * 3).describe()


@pytest.mark.parametrize(
    "options",
    [
        {"target": "pixels"},
        {"target": "pixels", "cross_decoder": True},
        {"target": "pixels", "layout": "beit"},
        {"target": "pixels", "layout": "mixmae", "mask_ratio": 0.5},
        {"target": "online", "prototypes": 8},
        {"layout": "mage", "mask_ratio": 0.55},
    ],
    ids=str,
)
def test_every_layout(options: dict[str, Any], tmp_path: Path) -> None:
    target = options.get("target") or KMeansTokenizer(k=6, patch_size=4).fit(DATA)
    rest = {name: value for name, value in options.items() if name != "target"}
    plain = cm.pretrain(DATA, target, **rest, **SHORT)
    encoder = cm.pretrain(DATA, target, registers=2, **rest, **SHORT, out=tmp_path / "run")
    images = torch.rand(2, 3, 16, 16)
    assert encoder(images).shape == plain(images).shape == (2, 17, 128)
    again = cm.load_encoder(tmp_path / "run")
    assert torch.equal(again(images), encoder(images))
    assert json.loads((tmp_path / "run" / "encoder.json").read_text())["registers"] == 2
    begun = build_backbone("micro", (16, 16), 4, registers=2).get_parameter("reg_token")
    assert not torch.equal(encoder.backbone.get_parameter("reg_token"), begun)  # it learns


def test_teachers_and_fine_tuning_keep_them(tmp_path: Path) -> None:
    encoder = Encoder(make(2), "micro", [0.5] * 3, [0.25] * 3).eval()
    encoder.save(tmp_path / "run")
    options = {"space": "features", "teacher": f"run:{tmp_path / 'run'}?layer=2"}
    tokenizer = KMeansTokenizer(k=4, patch_size=4, **options).fit(DATA)  # type: ignore[arg-type]
    tokenizer.save(tmp_path / "tokens")
    images = torch.rand(3, 3, 16, 16)
    assert torch.equal(cm.load_tokenizer(tmp_path / "tokens")(images), tokenizer(images))
    larger = "textures:?images=32&grid=6&patch=4&classes=2"
    labelled = {"epochs": 1, "batch_size": 16, "device": "cpu", "out": tmp_path / "tuned"}
    cm.finetune(encoder, larger, larger, **labelled)  # type: ignore[arg-type]
    tuned = cm.load_encoder(tmp_path / "tuned")
    assert tuned.backbone.registers == 2
    assert tuned(torch.rand(1, 3, 24, 24)).shape == (1, 37, 128)
    layers = {name: group["lr_scale"] for group in layer_groups(make(2), 0.5) for name in group["names"]}
    assert layers["reg_token"] == layers["cls_token"]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["pretrain", "--data", DATA, "--target", "pixels", "--epochs", "1", "--out", str(tmp_path / "run")]
    for count in ("-1", "1025"):
        assert main([*words, "--registers", count]) == 2
        assert f"--registers {count} must be 0 … 1024" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(BACKBONES, "toy", ViT.of_size)
    with pytest.raises(ConfigError, match="--registers is for the ViT of this library, not toy:micro"):
        build_backbone("toy:micro", (8, 8), 4, registers=1)
    Encoder(make(2), "micro", [0.5] * 3, [0.25] * 3).save(tmp_path / "encoder")
    path = tmp_path / "encoder" / "encoder.json"
    record = json.loads(path.read_text())
    for wrong in ("many", 10**9, -1, 3, 2.5, True, None):
        path.write_text(json.dumps({**record, "registers": wrong}))
        with pytest.raises(RunError, match=r"encoder\.json is"):
            cm.load_encoder(tmp_path / "encoder")
