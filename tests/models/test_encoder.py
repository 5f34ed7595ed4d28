"""An encoder: a module, and what is left of it on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from clustermim.data.transforms import normalize
from clustermim.errors import RunError
from clustermim.models import Encoder, build_backbone, load_encoder
from clustermim.models.export import export


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(build_backbone("micro", (8, 12), 4, 2), "micro", (0.1, 1 / 3), (0.2, 0.7), [{"step": 1}]).eval()


def test_a_module_of_images_in_the_unit_interval(encoder: Encoder) -> None:
    images = torch.rand(3, 2, 8, 12)
    assert encoder(images).shape == (3, 7, 128)
    assert torch.equal(encoder(images), encoder.backbone(normalize(images, encoder.mean, encoder.std)))
    assert (encoder.width, encoder.grid, encoder.image_size, encoder.channels) == (128, (2, 3), (8, 12), 2)
    count = sum(parameter.numel() for parameter in encoder.parameters())
    assert repr(encoder) == f"Encoder(micro: 2×8×12 images, patches of 4, width 128, {count:,} parameters)"


def test_saved_and_loaded(encoder: Encoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "not" / "there yet")
    again = load_encoder(tmp_path / "not" / "there yet")
    images = torch.rand(3, 2, 8, 12)
    assert torch.equal(again(images), encoder(images))
    assert (again.mean, again.std, again.model) == (encoder.mean, encoder.std, "micro")  # to the last digit
    assert not again.training
    blob = (tmp_path / "not" / "there yet" / "encoder.safetensors").read_bytes()
    assert again.weights == encoder.weights == hashlib.sha256(blob).hexdigest()
    with torch.no_grad():
        next(again.parameters()).add_(1)
    assert again.weights != encoder.weights
    assert load_encoder(again) is again
    assert load_encoder(str(tmp_path / "not" / "there yet")).weights == encoder.weights


def test_the_method_exports_as_the_function_does(tmp_path: Path) -> None:
    encoder = Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3)
    encoder.export("transformers", tmp_path / "method")
    export(encoder, "transformers", tmp_path / "function")
    files = [path.name for path in (tmp_path / "function").iterdir()]
    assert sorted(files) == [
        "README.md", "config.json", "encoder.json", "model.safetensors", "preprocessor_config.json",
    ]  # fmt: skip
    for name in files:
        assert (tmp_path / "method" / name).read_bytes() == (tmp_path / "function" / name).read_bytes()


@pytest.mark.parametrize("wrong", [None, 3, torch.rand(2)])
def test_no_encoder(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="an encoder is an Encoder or the folder of one, not"):
        load_encoder(wrong)
    with pytest.raises(RunError, match="holds no pretrained encoder"):
        load_encoder(tmp_path)


def test_a_place_that_cannot_be_written(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*encoder\.safetensors"):
        encoder.save(tmp_path / "file" / "run")
