"""Pretraining end to end: a real short fit of every target and layout, exact resumption, and what bad input gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.cli import main
from clustermim.models.storage import load_encoder
from clustermim.pretrain.views import MakeViews
from clustermim.training import SeededBatches

DATA = "textures:?images=96&grid=4&patch=4&channels={channels}"
SHORT = ("--batch-size", "32", "--epochs", "2", "--device", "cpu")


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    words = (
        "fit",
        "kmeans",
        "--data",
        DATA.format(channels=3),
        "--k",
        "12",
        "--patch-size",
        "4",
        "--out",
        tmp_path / "km",
    )
    assert run(*words) == 0
    return tmp_path / "km"


@pytest.mark.parametrize(
    "options",
    [
        ("--target", "pixels"),
        ("--target", "pixels", "--normalize-pixels", "--augment", "none"),
        ("--target", "hog", "--augment", "pad-crop"),
        ("--target", "tokens"),
        (
            "--target",
            "tokens",
            "--layout",
            "beit",
            "--masking",
            "block",
            "--mask-ratio",
            "0.4",
            "--label-smoothing",
            "0.1",
        ),
        ("--target", "pixels", "--accumulate", "2", "--clip", "1", "--positions", "learned", "--drop-path", "0.1"),
    ],
    ids=" ".join,
)
def test_every_target_and_layout(options: tuple[str, ...], tokens: Path, tmp_path: Path) -> None:
    more = ("--tokenizer", tokens) if "tokens" in options else ()
    out = tmp_path / "run"
    assert run("pretrain", "--data", DATA.format(channels=3), "--out", out, *SHORT, *options, *more) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert np.isfinite(summary["results"]["loss"])
    assert summary["results"]["steps"] == 6
    encoder = load_encoder(out)
    assert encoder(torch.rand(2, 3, 16, 16)).shape == (2, 17, 128)
    assert not any("mask_token" in key or "decoder" in key for key in encoder.vit.state_dict())
    assert (out / "decoder.safetensors").exists()


@pytest.mark.parametrize(("channels", "size"), [(1, "16"), (5, "8x16")])
def test_other_channels_and_shapes(channels: int, size: str, tmp_path: Path, noise: Any) -> None:
    height, width = (int(side) for side in (size.split("x") * 2)[:2])
    labels = np.arange(64) % 4
    pixels = noise(64, channels, height, width)
    pixels[:, 0] = (labels * 60)[:, None, None]  # a channel that tells the class
    np.savez(tmp_path / "x.npz", images=pixels, labels=labels)
    data = f"npz:{tmp_path / 'x.npz'}?layout=nchw"
    assert run("pretrain", "--data", data, "--target", "pixels", "--out", tmp_path / "run", *SHORT) == 0
    assert run("probe", tmp_path / "run", "--data", data, "--test-data", data) == 0
    results = json.loads((tmp_path / "run" / "probe" / "summary.json").read_text())["results"]
    assert results["avg"]["accuracy"] > 0.5
    assert run("knn", tmp_path / "run", "--data", data, "--test-data", data, "--k", "5") == 0


def test_the_same_seed_gives_the_same_bytes(tokens: Path, tmp_path: Path) -> None:
    for name in "ab":
        words = ("pretrain", "--data", DATA.format(channels=3), "--tokenizer", tokens, "--out", tmp_path / name)
        assert run(*words, *SHORT) == 0
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "config.yaml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_bytes(tmp_path: Path) -> None:
    words = ["pretrain", "--data", "textures:?images=640&grid=4&patch=4", "--target", "pixels", *SHORT, "--out"]
    command = [sys.executable, str(Path(__file__).parent / "launch.py"), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = subprocess.run([*command, str(tmp_path / "whole")], env=environment, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    part = subprocess.Popen([*command, str(tmp_path / "part")], env=environment, stderr=subprocess.DEVNULL)
    while not (tmp_path / "part" / "metrics.jsonl").exists():
        assert part.poll() is None or (tmp_path / "part" / "metrics.jsonl").exists()
    part.terminate()
    assert part.wait() in (143, 0)
    again = subprocess.run(
        [*command, str(tmp_path / "part"), "--resume"], env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0 or "complete run" in again.stderr, again.stderr
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_batches_depend_on_their_place_only(tmp_path: Path) -> None:
    from clustermim.data import open_source

    views = MakeViews((4, 4), "crop", "random", 0.75)
    batches = SeededBatches(open_source(DATA.format(channels=3)), 16, 3, views)
    whole, rest = list(batches(1, 0)), list(batches(1, 4))
    assert len(whole) == 6
    for first, second in zip(whole[4:], rest, strict=True):
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.mask.keep, second.mask.keep)
    other = next(iter(batches(2, 0)))
    assert not torch.equal(other.images, whole[0].images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "tokens"), "--target tokens needs --tokenizer"),
        (("--target", "pixels", "--tokenizer", "{tokens}"), "--tokenizer is for --target tokens"),
        (("--tokenizer", "{tokens}", "--patch-size", "8"), "is for patches of 4 pixels and 3 channels"),
        (("--target", "pixels", "--batch-size", "500"), "96 images, fewer than a batch of 500"),
        (("--target", "pixels", "--batch-size", "30", "--accumulate", "4"), "does not divide into 4 parts"),
        (("--target", "pixels", "--mask-ratio", "0.99"), "leaves 0 of 16 patches visible"),
        (("--target", "pixels", "--model", "mikro"), "did you mean micro?"),
        (("--target", "pixels", "--patch-size", "5"), "do not divide into patches of 5"),
        (("--target", "pixels", "--init-from", "nowhere"), "nowhere"),
    ],
)
def test_bad_input(
    options: tuple[str, ...], message: str, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(tokens=tokens) for word in options]
    assert (
        run("pretrain", "--data", DATA.format(channels=3), "--batch-size", "32", "--out", tmp_path / "run", *words) == 2
    )
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_encoders_that_cannot_be_read(tmp_path: Path, refuse: Callable[..., str]) -> None:
    out = tmp_path / "run"
    assert run("pretrain", "--data", DATA.format(channels=3), "--target", "pixels", "--out", out, *SHORT) == 0
    words = ("probe", out, "--data", DATA.format(channels=3), "--test-data", DATA.format(channels=3))
    weights = (out / "encoder.safetensors").read_bytes()
    (out / "encoder.safetensors").write_bytes(weights[:-5])
    assert "truncated or was changed" in refuse(*words)
    (out / "encoder.safetensors").unlink()
    assert "encoder.safetensors is missing" in refuse(*words)


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail in one line."""

    def command(*words: str | Path) -> str:
        assert run(*words) == 2
        return capsys.readouterr().err.splitlines()[-1]

    return command
