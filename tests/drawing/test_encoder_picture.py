"""The picture that `clustermim pretrain` leaves in a run folder, and that nothing else depends on it."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clustermim.cli import main
from clustermim.data import open_source
from clustermim.drawing import page
from clustermim.drawing import reconstructions as reconstruction
from clustermim.drawing.page import PICTURE
from clustermim.errors import WriteError
from clustermim.tokenizers import KMeansTokenizer

DATA = "textures:?images=32&grid=4x6&patch=4"
SHORT = ("--batch-size", "16", "--epochs", "1", "--device", "cpu")
FILES = ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "config.yaml")


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """The folder of a fitted tokenizer."""
    folder = tmp_path / "km"
    folder.mkdir()
    KMeansTokenizer(12, 4, iterations=3).fit(open_source(DATA)).save(folder)
    return str(folder)


def pretrain(out: Path, *words: str, data: str = DATA) -> int:
    return main(["pretrain", "--data", data, "--out", str(out), *SHORT, *words])


def picture_of(run: Path) -> Image.Image:
    picture = Image.open(io.BytesIO((run / PICTURE).read_bytes()))
    picture.load()
    assert picture.format == "PNG"
    return picture


@pytest.mark.parametrize("layout", ["mae", "beit"])
@pytest.mark.parametrize("target", ["pixels", "hog", "tokens"])
def test_every_target_and_layout(target: str, layout: str, tokens: str, tmp_path: Path) -> None:
    words = ("--tokenizer", tokens) if target == "tokens" else ()
    assert pretrain(tmp_path / "run", "--target", target, "--layout", layout, "--masking", "block", *words) == 0
    picture = picture_of(tmp_path / "run")
    rows = {"pixels": 3, "hog": 4, "tokens": 6}[target]
    assert picture.width >= 8 * 192
    assert picture.height >= rows * 128
    assert np.asarray(picture).std() > 10


@pytest.mark.parametrize("words", [("--target", "pixels"), ("--drop-path", "0.5")], ids=" ".join)
def test_nothing_else_depends_on_the_picture(
    words: tuple[str, ...], tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words if "pixels" in words else (*words, "--tokenizer", tokens)
    for name in "ab":
        assert pretrain(tmp_path / name, *words) == 0
    assert (tmp_path / "a" / PICTURE).read_bytes() == (tmp_path / "b" / PICTURE).read_bytes()
    monkeypatch.setattr(reconstruction, "write_reconstructions", lambda *_: None)
    assert pretrain(tmp_path / "without", *words) == 0
    assert not (tmp_path / "without" / PICTURE).exists()
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "without" / file).read_bytes()
    results = [json.loads((tmp_path / name / "summary.json").read_text())["results"] for name in ("a", "without")]
    assert results[0]["loss"] == results[1]["loss"]


def test_names_that_the_font_lacks_or_that_look_like_formulas(npz: Callable[..., str], tmp_path: Path) -> None:
    names = np.array(["一 $x_1^", "two\nlines", "W" * 300])
    data = npz(32, 3, 8, 8, name="二", labels=np.arange(32) % 3, class_names=names)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing from font")
        assert pretrain(tmp_path / "run", "--target", "pixels", data=data) == 0
    picture_of(tmp_path / "run")


def test_a_full_disk_keeps_the_encoder_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: Any) -> None:
        raise WriteError(path, "No space left on device")

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(page, "write_atomic", full)
        assert pretrain(run, "--target", "pixels") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: cannot write {run / PICTURE}: No space left on device; ")
    assert (run / "encoder.safetensors").exists()
    assert not (run / "summary.json").exists()
    weights = (run / "encoder.safetensors").read_bytes()
    assert pretrain(run, "--target", "pixels", "--resume") == 0
    assert (run / "encoder.safetensors").read_bytes() == weights
    picture_of(run)
