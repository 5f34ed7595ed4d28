"""Exported encoders: timm and transformers load every weight, and give our features; and what bad input gets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from clustermim.cli import main
from clustermim.data.transforms import normalize
from clustermim.errors import RunError
from clustermim.models import Encoder, Positions, ViT, load_encoder
from clustermim.models.names import to_transformers
from timm_peer import import_timm

LIBRARIES = ("timm", "transformers")


class Shape(NamedTuple):
    """What tells one encoder from another."""

    image_size: tuple[int, int] = (16, 16)
    patch_size: int = 4
    channels: int = 3
    positions: Positions = "sincos"
    model: str = "micro"
    registers: int = 0


MICRO = Shape()
SHAPES = [
    MICRO,
    Shape(image_size=(48, 80), patch_size=8),
    Shape(channels=1),
    Shape(channels=5),
    Shape(image_size=(8, 12), positions="learned"),
    Shape(model="tiny"),
    Shape(registers=3),
    Shape(registers=1, positions="learned", channels=5),
]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def make_encoder(folder: Path, shape: Shape = MICRO) -> Path:
    """The folder of an encoder with random values everywhere but in fixed positions: none may hide a wrong name."""
    torch.manual_seed(0)
    sizes = shape.image_size, shape.patch_size, shape.channels
    vit = ViT.of_size(shape.model, *sizes, positions=shape.positions, registers=shape.registers)
    with torch.no_grad():
        for parameter in vit.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    folder.mkdir()
    mean, std = torch.rand(2, shape.channels).tolist()
    Encoder(vit, shape.model, mean, std).save(folder)
    return folder


def inputs(encoder: Encoder, count: int = 3) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], and our tokens of them."""
    images = torch.rand(count, encoder.backbone.channels, *encoder.backbone.image_size)
    with torch.no_grad():
        return images, encoder(images)


def load_timm(folder: Path, **options: Any) -> Any:
    return import_timm().create_model(f"local-dir:{folder}", pretrained=True, **options).eval()


def load_transformers(folder: Path) -> Any:
    """The model, after a look at what it did not find in the file."""
    model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def check_timm(run_folder: Path, folder: Path) -> None:
    """timm has our weights, our features and our normalisation."""
    encoder, model = load_encoder(run_folder), load_timm(folder)
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == model.state_dict().keys()
    assert model.num_prefix_tokens == 1 + encoder.backbone.registers
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())
    images, tokens = inputs(encoder)
    settings = model.pretrained_cfg
    assert tuple(settings["input_size"]) == images.shape[1:]
    with torch.no_grad():
        theirs = model.forward_features(normalize(images, settings["mean"], settings["std"]))
    torch.testing.assert_close(without_registers(theirs, encoder), tokens, rtol=1e-5, atol=1e-5)


def without_registers(tokens: Tensor, encoder: Encoder) -> Tensor:
    """The libraries give the registers too, after the class token."""
    return torch.cat([tokens[:, :1], tokens[:, 1 + encoder.backbone.registers :]], dim=1)


def check_transformers(run_folder: Path, folder: Path) -> None:
    """transformers has our features and our normalisation, and would write the file that we wrote."""
    encoder, model = load_encoder(run_folder), load_transformers(folder)
    images, tokens = inputs(encoder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    assert (settings["size"]["height"], settings["size"]["width"]) == images.shape[2:]
    with torch.no_grad():
        theirs = model(normalize(images, settings["image_mean"], settings["image_std"])).last_hidden_state
    torch.testing.assert_close(without_registers(theirs, encoder), tokens, rtol=1e-5, atol=1e-5)
    model.save_pretrained(folder / "again")
    ours, again = load_file(folder / "model.safetensors"), load_file(folder / "again" / "model.safetensors")
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], again[name]) for name in ours)


CHECKS: dict[str, Callable[[Path, Path], None]] = {"timm": check_timm, "transformers": check_transformers}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("to", LIBRARIES)
def test_the_same_features(to: str, shape: Shape, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, out = make_encoder(tmp_path / "run", shape), tmp_path / "out"
    assert run("export", encoder, "--to", to, "--out", out) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert str(out) in line
    CHECKS[to](encoder, out)


def test_a_pretrained_run(tmp_path: Path) -> None:
    data, trained = "textures:?images=32&grid=4&patch=4", tmp_path / "run"
    words = ("--target", "pixels", "--layout", "beit", "--batch-size", "16", "--epochs", "1", "--device", "cpu")
    assert run("pretrain", "--data", data, "--out", trained, *words) == 0
    for to in LIBRARIES:
        assert run("export", trained, "--to", to, "--out", trained / to) == 0
        names = load_file(trained / to / "model.safetensors").keys()
        assert not any(part in name for part in ("mask_token", "decoder", "head") for name in names)
        CHECKS[to](trained, trained / to)


def test_the_printed_lines_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = load_encoder(make_encoder(tmp_path / "run"))
    wanted = sum(parameter.numel() for parameter in encoder.backbone.parameters())
    for to in LIBRARIES:
        assert run("export", "run", "--to", to, "--out", f"it's/{to}") == 0
        line = capsys.readouterr().out.partition("load it with ")[2]
        model = eval(line, {"timm": import_timm(), "transformers": transformers})  # noqa: S307
        assert sum(parameter.numel() for parameter in model.parameters()) == wanted


def test_the_head_of_a_finetuned_run_stays_behind(tmp_path: Path) -> None:
    encoder, out = make_encoder(tmp_path / "run"), tmp_path / "out"
    head = {"head.weight": torch.zeros(10, 128), "head.bias": torch.zeros(10)}
    save_file({**load_file(encoder / "encoder.safetensors"), **head}, encoder / "model.safetensors")
    assert run("export", encoder, "--to", "timm", "--out", out) == 0
    check_timm(encoder, out)


@pytest.mark.parametrize("load", ["AutoModel", "ViTMSNModel"])
def test_transformers_says_nothing_of_missing_or_other_weights(
    load: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("export", make_encoder(tmp_path / "run"), "--to", "transformers", "--out", tmp_path / "out") == 0
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)  # it does not pass its lines on
    try:
        getattr(transformers, load).from_pretrained(tmp_path / "out")
        assert [line for line in caplog.messages if "weights" in line.lower() or "MISSING" in line] == []
        transformers.ViTModel.from_pretrained(tmp_path / "out")  # it has a pooling layer, so it does say something
        assert any("pooler" in line for line in caplog.messages)
    finally:
        library.removeHandler(caplog.handler)
    assert "MISSING" not in capfd.readouterr().out


@pytest.mark.parametrize("shape", [MICRO, Shape(image_size=(8, 12), positions="learned"), Shape(registers=2)], ids=str)
@pytest.mark.parametrize("to", LIBRARIES)
def test_what_was_exported_loads_here_again(to: str, shape: Shape, tmp_path: Path) -> None:
    encoder = load_encoder(make_encoder(tmp_path / "run", shape))
    encoder.export(to, tmp_path / "out")  # type: ignore[arg-type]
    again = load_encoder(tmp_path / "out")
    assert (again.weights, again.describe()) == (encoder.weights, encoder.describe())
    changed = {name: value + 1 for name, value in load_file(tmp_path / "out" / "model.safetensors").items()}
    save_file(changed, tmp_path / "out" / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunError, match=r"model\.safetensors was changed"):
        load_encoder(tmp_path / "out")


def test_the_format_that_older_versions_ask_for(tmp_path: Path) -> None:
    assert run("export", make_encoder(tmp_path / "run"), "--to", "transformers", "--out", tmp_path / "out") == 0
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_heads_that_the_libraries_add(tmp_path: Path) -> None:
    """A new classifier is the only thing that is not loaded; timm's average is our average pooling."""
    encoder = load_encoder(make_encoder(tmp_path / "run", Shape(channels=5)))
    for to in LIBRARIES:
        assert run("export", tmp_path / "run", "--to", to, "--out", tmp_path / to) == 0
    images, tokens = inputs(encoder)
    pixels = normalize(images, encoder.mean, encoder.std)
    with torch.no_grad():
        average = load_timm(tmp_path / "timm", global_pool="avg")(pixels)
        features = load_timm(tmp_path / "timm", num_classes=10).forward_features(pixels)
    torch.testing.assert_close(average, tokens[:, 1:].mean(dim=1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features, tokens, rtol=1e-5, atol=1e-5)

    folder = tmp_path / "transformers"
    load = transformers.AutoModelForImageClassification.from_pretrained
    model, info = load(folder, num_labels=10, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert not info["unexpected_keys"]
    assert model(pixels).logits.shape == (3, 10)


@pytest.mark.parametrize(("image_size", "picture_size"), [((16, 16), (40, 40)), ((8, 12), (8, 12))])
def test_from_a_picture_to_the_same_pixels(
    image_size: tuple[int, int], picture_size: tuple[int, int], tmp_path: Path, noise: Any
) -> None:
    encoder = load_encoder(make_encoder(tmp_path / "run", Shape(image_size)))
    for to in LIBRARIES:
        assert run("export", tmp_path / "run", "--to", to, "--out", tmp_path / to) == 0
    picture = Image.fromarray(noise(*picture_size, 3))
    small = np.array(picture.resize(image_size[::-1], Image.Resampling.BICUBIC))  # as our sources do
    data = import_timm().data
    transform = data.create_transform(**data.resolve_model_data_config(load_timm(tmp_path / "timm")))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "transformers")
    mean, std = (torch.tensor(values)[:, None, None] for values in (encoder.mean, encoder.std))
    for theirs in (transform(picture), processor(picture, return_tensors="pt")["pixel_values"][0]):
        levels = (theirs * std + mean) * 255  # (C, H, W)
        apart = 0.01 if image_size == picture_size else 1.01  # who resizes may round to the level beside ours
        torch.testing.assert_close(levels, torch.from_numpy(small).permute(2, 0, 1).float(), rtol=0, atol=apart)


def test_a_channel_that_never_varies(tmp_path: Path) -> None:
    """We only centre it; the libraries divide by what the file says."""
    Encoder(ViT.of_size("micro", (16, 16), 4), "micro", [0.5, 0.0, 0.25], [0.2, 0.0, 0.1]).save(tmp_path)
    for to in LIBRARIES:
        assert run("export", tmp_path, "--to", to, "--out", tmp_path / to) == 0
    timm = json.loads((tmp_path / "timm" / "config.json").read_text())
    processor = json.loads((tmp_path / "transformers" / "preprocessor_config.json").read_text())
    assert timm["pretrained_cfg"]["std"] == processor["image_std"] == [0.2, 1.0, 0.1]


def test_queries_keys_and_values_in_order() -> None:
    named = to_transformers({"blocks.11.attn.qkv.bias": torch.arange(6)})
    prefix = "encoder.layer.11.attention.attention"
    assert {name: value.tolist() for name, value in named.items()} == {
        f"{prefix}.query.bias": [0, 1],
        f"{prefix}.key.bias": [2, 3],
        f"{prefix}.value.bias": [4, 5],
    }


@pytest.mark.parametrize("to", LIBRARIES)
def test_without_the_libraries(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (*LIBRARIES, "torchvision"):
        monkeypatch.setitem(sys.modules, library, None)  # an import now fails
    assert run("export", make_encoder(tmp_path / "run"), "--to", to, "--out", tmp_path / "out") == 0


def test_overwrite_and_the_same_bytes(tmp_path: Path, refuse: Callable[..., str]) -> None:
    words = ("export", make_encoder(tmp_path / "run"), "--to", "timm", "--out")
    assert run(*words, tmp_path / "a") == run(*words, tmp_path / "b") == 0
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["README.md", "config.json", "encoder.json", "model.safetensors"]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert "holds an export" in refuse(*words, tmp_path / "a")
    assert run("export", tmp_path / "run", "--to", "transformers", "--out", tmp_path / "a", "--overwrite") == 0
    check_transformers(tmp_path / "run", tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["a", "b", "run"]


def test_registers_of_images_that_are_not_square(tmp_path: Path, refuse: Callable[..., str]) -> None:
    encoder, out = make_encoder(tmp_path / "run", Shape(image_size=(8, 12), registers=2)), tmp_path / "out"
    assert "is for timm only" in refuse("export", encoder, "--to", "transformers", "--out", out)
    assert not out.exists()
    assert run("export", encoder, "--to", "timm", "--out", out) == 0
    check_timm(encoder, out)


def test_the_printed_line_for_registers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, out = make_encoder(tmp_path / "run", Shape(registers=2)), tmp_path / "out"
    assert run("export", encoder, "--to", "transformers", "--out", out) == 0
    line = capsys.readouterr().out.partition("load it with ")[2]
    model = eval(line, {"transformers": transformers})  # noqa: S307
    assert model.config.num_register_tokens == 2


def test_bad_input(tmp_path: Path, refuse: Callable[..., str]) -> None:
    encoder, out = make_encoder(tmp_path / "run"), tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    to = ("--to", "timm", "--out")
    assert "holds no pretrained encoder" in refuse("export", tmp_path / "empty", *to, out)
    assert "holds no pretrained encoder" in refuse("export", tmp_path / "nowhere", *to, out)
    assert "expected one of 'timm', 'transformers', got flax" in refuse("export", encoder, "--to", "flax", "--out", out)
    assert "missing: to" in refuse("export", encoder, "--out", out)
    assert "holds file, so it is no export" in refuse("export", encoder, *to, tmp_path / "other", "--overwrite")
    assert "is a file" in refuse("export", encoder, *to, tmp_path / "other" / "file")
    assert "is not the short name of a licence" in refuse("export", encoder, *to, out, "--license", "free: yes")
    for folder in (encoder, tmp_path):
        assert "holds the run to export" in refuse("export", encoder, *to, folder, "--overwrite")
    load_encoder(encoder)  # it is still there
    weights = (encoder / "encoder.safetensors").read_bytes()
    (encoder / "encoder.safetensors").write_bytes(weights[:-5])
    assert "truncated or was changed" in refuse("export", encoder, *to, out)
    assert not out.exists()


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail in one line."""

    def command(*words: str | Path) -> str:
        assert run(*words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        return line

    return command
