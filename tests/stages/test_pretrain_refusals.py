"""What pretraining is refused, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pretrain_toys import DATA, SHORT, run

from clustermim.models import load_encoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "tokens"), "--target tokens and vectors need --tokenizer"),
        (("--target", "pixels", "--tokenizer", "{tokens}"), "--tokenizer is for --target tokens"),
        (("--tokenizer", "{tokens}", "--patch-size", "8"), "is for patches of 4 pixels and 3 channels"),
        (("--target", "pixels", "--batch-size", "500"), "96 images, fewer than a batch of 500"),
        (("--target", "pixels", "--batch-size", "30", "--accumulate", "4"), "does not divide into 4 parts"),
        (("--target", "pixels", "--mask-ratio", "0.99"), "leaves 0 of 16 patches visible"),
        (("--target", "pixels", "--model", "mikro"), "did you mean micro?"),
        (("--target", "pixels", "--decoder-width", "100"), "a decoder of width 100 and depth 0 cannot be"),
        (("--target", "pixels", "--layout", "beit", "--decoder-depth", "2"), "are for --layout mae"),
        (("--target", "pixels", "--patch-size", "5"), "do not divide into patches of 5"),
        (("--target", "pixels", "--init-from", "nowhere"), "nowhere"),
        (("--target", "hog", "--normalize-pixels"), "--normalize-pixels is for --target pixels"),
        (("--target", "hog", "--tokenizer", "{tokens}"), "--tokenizer is for --target tokens"),
        (("--target", "pixels", "--seed", "-1"), "--seed -1 is not in 0"),
        (("--target", "pixels", "--weight-decay", "-1"), "--weight-decay -1 would let weights grow"),
        (("--target", "pixels", "--track", "wandb"), "needs an optional dependency"),
        (("--tokenizer", "{tokens}", "--cache-tokens"), "--cache-tokens needs --augment none"),
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


def test_a_tokenizer_that_cannot_take_the_images_leaves_the_run_there(
    tokens: Path, tmp_path: Path, refuse: Callable[..., str]
) -> None:
    words = ("pretrain", "--out", tmp_path / "run", *SHORT)
    assert run(*words, "--data", DATA.format(channels=3), "--tokenizer", tokens) == 0
    before = (tmp_path / "run" / "encoder.safetensors").read_bytes()
    options = ("--space", "features", "--teacher", f"run:{tmp_path / 'run'}", "--k", "4", "--patch-size", "4")
    assert run("fit", "kmeans", "--data", DATA.format(channels=3), *options, "--out", tmp_path / "own") == 0
    assert run("fit", "labels", "--data", DATA.format(channels=3), "--patch-size", "4", "--out", tmp_path / "few") == 0
    other = DATA.format(channels=3).replace("grid=4", "grid=6")
    assert "grid" in refuse(*words, "--data", other, "--tokenizer", tmp_path / "own", "--overwrite")
    more = f"{DATA.format(channels=3)}&classes=5"
    assert "has 5 classes" in refuse(*words, "--data", more, "--tokenizer", tmp_path / "few", "--overwrite")
    assert (tmp_path / "run" / "encoder.safetensors").read_bytes() == before


def test_a_run_goes_on_with_the_random_tokens_it_was_begun_with(tmp_path: Path, refuse: Callable[..., str]) -> None:
    fit = ("fit", "random", "--data", DATA.format(channels=3), "--k", "5", "--patch-size", "4", "--out", tmp_path / "r")
    assert run(*fit) == 0
    words = ("pretrain", "--data", DATA.format(channels=3), "--tokenizer", tmp_path / "r", "--out", tmp_path / "run")
    assert run(*words, *SHORT, "--stop-after", "1") == 0
    assert run(*fit, "--seed", "1", "--overwrite") == 0
    assert "was begun with" in refuse(*words, *SHORT, "--resume")


def test_encoders_that_cannot_be_read(tmp_path: Path, refuse: Callable[..., str]) -> None:
    out = tmp_path / "run"
    assert run("pretrain", "--data", DATA.format(channels=3), "--target", "pixels", "--out", out, *SHORT) == 0
    words = ("probe", out, "--data", DATA.format(channels=3), "--test-data", DATA.format(channels=3))
    weights = (out / "encoder.safetensors").read_bytes()
    (out / "encoder.safetensors").write_bytes(weights[:-5])
    assert "truncated or was changed" in refuse(*words)
    (out / "encoder.safetensors").unlink()
    assert "encoder.safetensors is missing" in refuse(*words)


def test_the_patch_size_is_that_of_the_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DATA.format(channels=3)
    fit = ("fit", "kmeans", "--data", data, "--k", "4", "--patch-size", "8", "--out", tmp_path / "km")
    assert run(*fit) == 0
    capsys.readouterr()
    assert run("pretrain", "--data", data, "--tokenizer", tmp_path / "km", *SHORT, "--out", tmp_path / "run") == 0
    assert load_encoder(tmp_path / "run").patch_size == 8
    assert "patch_size: 8" in (tmp_path / "run" / "config.yaml").read_text()  # complete
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"wrote an encoder pretrained for 2 epochs to {tmp_path / 'run'}: loss ")
    assert "token accuracy" in lines[0]
    assert lines[1].startswith(f"next: clustermim probe {tmp_path / 'run'} --data ")
