"""The command line as a person uses it: the path from images to a score, and one clear line for every mistake."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clustermim import __version__, cli
from clustermim.cli import main
from clustermim.data import open_source, to_float
from clustermim.patches import patchify
from clustermim.tokenizers import load_tokenizer

Command = Callable[..., tuple[int, str, str]]
SMALL = "textures:?images=80&grid=4"
JSON_KEYS = (
    "tcas", "adjusted", "debiased", "debiased_low", "debiased_high", "null", "chance", "alpha", "sum_sq", "used",
    "vocab_size", "perplexity", "nmi", "images", "patches", "variant",
)  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process: exit code, stdout, stderr."""

    def command(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def refused(run: Command, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail: exit code 2, one line at the end of stderr, no file made or changed."""

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def command(*words: str | Path) -> str:
        before = files()
        code, out, err = run(*words)
        assert code == 2
        assert out == ""
        assert "Traceback" not in err
        lines = err.splitlines()
        assert lines[-1].startswith("error: ")
        assert sum(line.startswith("error: ") for line in lines) == 1
        assert files() == before
        return lines[-1]

    return command


def fit(run: Command, out: Path, *more: str) -> Path:
    code, _, err = run("fit", "kmeans", "--data", SMALL, "--k", "6", "--patch-size", "8", "--out", out, *more)
    assert code == 0, err
    return out


def test_from_images_to_a_score(run: Command, tmp_path: Path) -> None:
    folder = fit(run, tmp_path / "km")
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "summary.json", "tokenizer.json", "tokenizer.safetensors",
    }  # fmt: skip
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) > 2
    assert all("inertia" in line for line in metrics)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["results"]["patches"] == 80 * 16
    assert summary["data"]["spec"].startswith("textures")
    tokenizer, images = load_tokenizer(folder), to_float(open_source(SMALL).read(range(80)).images)
    pictures = tokenizer.center_patches()
    assert pictures is not None
    error = (pictures.permute(0, 2, 3, 1).flatten(1)[tokenizer(images)] - patchify(images, 8)).square().mean()
    assert summary["results"]["psnr"] == pytest.approx(-10 * math.log10(float(error)), abs=1e-3)
    code, out, _ = run("score", folder, "--data", SMALL, "--json")
    scores = json.loads(out)
    assert code == 0
    assert set(JSON_KEYS) <= scores.keys()
    (written,) = folder.glob("score-*/summary.json")
    assert json.loads(written.read_text())["results"] == scores
    code, out, _ = run("score", folder, "--data", SMALL)  # again, as a table
    assert code == 0
    assert "Trust `debiased`" in out
    assert all(name in out for name in ("debiased", "adjusted", "alpha", "sum_sq"))


def test_tokenize(run: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    folder = fit(run, tmp_path / "km")
    assert run("tokenize", folder, "--data", SMALL, "--out", tmp_path / "ids.npy")[0] == 0
    ids = np.load(tmp_path / "ids.npy")
    assert ids.shape == (80, 16)
    assert ids.dtype == np.int32
    assert 0 <= ids.min() <= ids.max() < 6
    assert "exists" in refused("tokenize", folder, "--data", SMALL, "--out", tmp_path / "ids.npy")
    assert "must end in .npy" in refused("tokenize", folder, "--data", SMALL, "--out", tmp_path / "ids.txt")
    assert run("tokenize", folder, "--data", SMALL, "--out", tmp_path / "ids.npy", "--overwrite")[0] == 0


def test_tokenize_marks_images_it_could_not_read(run: Command, tmp_path: Path, noise: Any) -> None:
    (tmp_path / "images").mkdir()
    for i in range(7):
        Image.fromarray(noise(16, 16, 3, seed=i)).save(tmp_path / "images" / f"{i}.png")
    for i in (2, 6):
        path = tmp_path / "images" / f"{i}.png"
        path.write_bytes(path.read_bytes()[:200])
    spec = f"folder:{tmp_path / 'images'}?on_bad_image=skip&size=16"
    assert run("fit", "kmeans", "--data", spec, "--k", "3", "--patch-size", "8", "--out", tmp_path / "km")[0] == 0
    code, _, err = run("tokenize", tmp_path / "km", "--data", spec, "--out", tmp_path / "ids.npy")
    ids = np.load(tmp_path / "ids.npy")
    assert code == 0
    assert "2 images could not be read and were skipped" in err
    assert ids.shape == (7, 4)
    assert ((ids == -1).all(1) == np.isin(np.arange(7), (2, 6))).all()
    assert (ids[[0, 1, 3, 4, 5]] >= 0).all()


def test_the_same_seed_gives_the_same_files(run: Command, tmp_path: Path) -> None:
    first, again = fit(run, tmp_path / "a"), fit(run, tmp_path / "b")
    for name in ("config.yaml", "metrics.jsonl", "tokenizer.json", "tokenizer.safetensors"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


def test_configuration_file(run: Command, tmp_path: Path) -> None:
    (tmp_path / "fit.yaml").write_text(f"data: '{SMALL}'\nk: 4\npatch_size: 8\n")
    assert run("fit", "kmeans", "--config", tmp_path / "fit.yaml", "--out", tmp_path / "km")[0] == 0
    assert load_tokenizer(tmp_path / "km").vocab_size == 4


def test_version_doctor_and_overviews(run: Command) -> None:
    assert run("--version")[1] == f"clustermim {__version__}\n"
    assert "fit" in run()[1]
    assert "kmeans" in run("fit", "--help")[1]
    found = json.loads(run("doctor", "--json")[1])
    assert found["torch"] == torch.__version__
    assert found["tifffile"].endswith("(extra tiff)")
    assert found["devices"][0] == "cpu"
    assert "tifffile" in run("doctor")[1]


def test_softmax_at_temperature_one_warns(run: Command, tmp_path: Path) -> None:
    code, _, err = run("score", fit(run, tmp_path / "km"), "--data", SMALL, "--norm", "softmax")
    assert code == 0
    assert "warning: softmax at temperature 1 gives all tokenizers nearly the same value" in err


# What bad input gets


def test_unknown_words(refused: Callable[..., str]) -> None:
    assert "there is no command 'clustermim fot'; did you mean fit?" in refused("fot")
    assert "there is no option --outt; did you mean --out?" in refused("fit", "kmeans", "--outt", "x")
    assert "missing: data, out" in refused("fit", "kmeans")
    assert "must come after a command" in refused("--k", "3")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("texture:", "there is no source named 'texture'; did you mean textures?"),
        ("textures:?nois=1", "no option 'nois'; did you mean noise?"),
        ("textures:?noise=x", "option noise=x must be a number"),
        ("cifar10/valid", "cifar10 has no split 'valid'"),
        ("cifar10/train", "clustermim data get cifar10"),
        ("folder:{tmp}/nowhere", "nowhere"),
        ("folder:{tmp}/empty", "empty"),
        ("npz:{tmp}/mixed.npz", "mixed.npz"),
        ("npz:{tmp}/nan.npz", "nan.npz"),
        ("folder:{tmp}/truncated", "a.jpg"),
        ("folder:{tmp}/bomb", "bomb.png"),
        ("{tmp}/empty", "no images in"),
    ],
)
def test_bad_data(
    data: str, message: str, refused: Callable[..., str], tmp_path: Path, encode: Any, noise: Any
) -> None:
    (tmp_path / "empty").mkdir()
    ragged = np.empty(2, dtype=object)
    ragged[:] = [noise(8, 8, 3), noise(8, 9, 3)]
    np.savez(tmp_path / "mixed.npz", images=ragged)
    np.savez(tmp_path / "nan.npz", images=np.full((4, 8, 8, 3), np.nan, dtype=np.float32))
    (tmp_path / "truncated").mkdir()
    whole = encode(noise(32, 32, 3), "JPEG")
    (tmp_path / "truncated" / "a.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bomb").mkdir()
    (tmp_path / "bomb" / "bomb.png").write_bytes(encode(Image.new("1", (20_000, 20_000))))
    spec = data.format(tmp=tmp_path)
    error = refused("fit", "kmeans", "--data", spec, "--k", "3", "--patch-size", "8", "--out", tmp_path / "km")
    assert message in error


def test_a_device_that_is_not_there_is_refused_first(refused: Callable[..., str], tmp_path: Path) -> None:
    words = ("pretrain", "--data", "folder:nowhere", "--target", "pixels", "--out", tmp_path / "run", "--device")
    missing = "mps" if torch.cuda.is_available() else "cuda"
    assert f"--device {missing} is not available here" in refused(*words, missing)


def test_bad_settings(refused: Callable[..., str], tmp_path: Path) -> None:
    words = ("fit", "kmeans", "--data", "textures:?images=20&noise=0&jitter=0", "--out", tmp_path / "km")
    error = refused(*words, "--patch-size", "8", "--k", "300")
    assert "k = 300, but there are only 20 distinct patches among the 1280 used: choose --k 20 or less" in error
    assert "64×64 pixels do not divide into patches of 7" in refused(*words, "--patch-size", "7")
    assert "--k: expected int, got many" in refused(*words, "--k", "many")
    assert "--space: expected one of 'pixel', 'pixel-norm', 'pixel-white', 'features', got hue" in refused(
        *words, "--space", "hue"
    )


def test_output_that_cannot_be_written(run: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    words = ("fit", "kmeans", "--data", SMALL, "--k", "6", "--patch-size", "8", "--out")
    fit(run, tmp_path / "km")
    assert "holds a complete run" in refused(*words, tmp_path / "km")
    fit(run, tmp_path / "km", "--overwrite")
    (tmp_path / "file").touch()
    assert "cannot write to" in refused(*words, tmp_path / "file" / "km")
    assert "holds other files" in refused(*words, tmp_path, "--overwrite")


def test_a_full_disk(refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    words = ("fit", "kmeans", "--data", SMALL, "--k", "6", "--patch-size", "8", "--out", tmp_path / "km")
    assert "No space left on device" in refused(*words)
    assert not list(tmp_path.glob("*km*"))


def test_missing_labels(run: Command, refused: Callable[..., str], tmp_path: Path, noise: Any) -> None:
    np.savez(tmp_path / "plain.npz", images=noise(30, 16, 16, 3))
    words = ("--data", f"npz:{tmp_path / 'plain.npz'}")
    assert run("fit", "kmeans", *words, "--k", "3", "--patch-size", "8", "--out", tmp_path / "km")[0] == 0
    code, out, _ = run("score", tmp_path / "km", *words)
    assert code == 0
    assert "view_retrieval" in out
    assert "Not without labels: transferability" in out
    assert "has no labels" in refused("fit", "labels", *words, "--patch-size", "8", "--out", tmp_path / "l")


def test_damaged_tokenizer(run: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    folder = fit(run, tmp_path / "km")
    weights = (folder / "tokenizer.safetensors").read_bytes()
    (folder / "tokenizer.safetensors").write_bytes(weights[:-9])
    assert "truncated or was changed" in refused("score", folder, "--data", SMALL)
    (folder / "tokenizer.safetensors").unlink()
    assert "tokenizer.safetensors: No such file" in refused("score", folder, "--data", SMALL)
    assert "no tokenizer folder" in refused("score", tmp_path / "nothing", "--data", SMALL)


def test_tokenizer_of_other_channels(run: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    folder = fit(run, tmp_path / "km")
    error = refused("score", folder, "--data", "textures:?images=80&channels=1")
    assert "fitted on 3-channel images, these have 1: add ?channels=3" in error


def test_debug_shows_the_traceback() -> None:
    command = [sys.executable, "-c", "import sys; from clustermim.cli import main; sys.exit(main())"]
    quiet = subprocess.run([*command, "score", "nowhere", "--data", SMALL], capture_output=True, text=True)
    loud = subprocess.run([*command, "score", "nowhere", "--data", SMALL, "--debug"], capture_output=True, text=True)
    assert quiet.returncode == 2
    assert quiet.stderr.splitlines()[1].startswith("error: there is no tokenizer folder nowhere")
    assert "Traceback" in loud.stderr


def test_interruption(run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupt)
    code, out, err = run("doctor")
    assert (code, out) == (130, "")
    assert "interrupted" in err
