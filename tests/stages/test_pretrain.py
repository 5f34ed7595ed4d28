"""Pretraining end to end: a real short fit of every target and layout, exact resumption, and what bad input gets."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretrain_toys import DATA, SHORT, run
from safetensors.torch import load_file

from clustermim.models import load_encoder
from clustermim.pretraining import MaskedCollator, Masking
from clustermim.targets import Target, TokenTarget, VectorTarget
from clustermim.training import SeededBatches

LONGER = ("--batch-size", "32", "--epochs", "4", "--device", "cpu", "--drop-path", "0.2", "--target", "pixels")
FILES = ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "config.yaml")


def same(first: Path, second: Path) -> bool:
    """Whether two runs left the same bytes."""
    return all((first / file).read_bytes() == (second / file).read_bytes() for file in FILES)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Trap:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.folder),))


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
    assert not any("mask_token" in key or "decoder" in key for key in encoder.backbone.state_dict())
    assert (out / "decoder.safetensors").exists()


@pytest.mark.parametrize(("channels", "size", "patch"), [(1, "16", 4), (5, "8x16", 4), (3, "48x80", 16)])
def test_other_channels_and_shapes(channels: int, size: str, patch: int, tmp_path: Path, noise: Any) -> None:
    height, width = (int(side) for side in (size.split("x") * 2)[:2])
    labels = np.arange(64) % 4
    pixels = noise(64, channels, height, width)
    pixels[:, 0] = (labels * 60)[:, None, None]  # a channel that tells the class
    np.savez(tmp_path / "x.npz", images=pixels, labels=labels)
    data = f"npz:{tmp_path / 'x.npz'}?layout=nchw"
    words = ("--target", "pixels", "--patch-size", str(patch), *SHORT)
    assert run("pretrain", "--data", data, "--out", tmp_path / "run", *words) == 0
    assert load_encoder(tmp_path / "run").grid == (height // patch, width // patch)
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


@pytest.fixture
def halves(tmp_path: Path) -> tuple[tuple[str | Path, ...], Path]:
    """The words of a run of four epochs without its folder, and a folder in which two of them are done."""
    words = ("pretrain", "--data", DATA.format(channels=3), *LONGER, "--out")
    assert run(*words, tmp_path / "part", "--stop-after", "2") == 0
    assert not (tmp_path / "part" / "summary.json").exists()
    return words, tmp_path / "part"


Halves = tuple[tuple[str | Path, ...], Path]


def test_two_epochs_and_two_more_give_the_same_bytes(halves: Halves, tmp_path: Path) -> None:
    words, part = halves
    assert run(*words, tmp_path / "whole") == 0
    assert run(*words, part, "--resume") == 0
    assert same(part, tmp_path / "whole")


def test_a_full_disk_costs_nothing_but_time(
    halves: Halves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., str]
) -> None:
    words, part = halves
    kept = (part / "checkpoint.safetensors").read_bytes()
    with monkeypatch.context() as patched:

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(os, "fsync", full)
        line = refuse(*words, part, "--resume")
    assert "of step 12: No space left on device; the one of step 6 is kept, add --resume to go on" in line
    assert (part / "checkpoint.safetensors").read_bytes() == kept
    assert not list(part.glob(".*"))
    assert run(*words, part, "--resume") == 0
    assert run(*words, tmp_path / "whole") == 0
    assert same(part, tmp_path / "whole")


def test_runs_that_cannot_be_resumed(halves: Halves, tmp_path: Path, refuse: Callable[..., str]) -> None:
    words, part = halves
    before = contents(part)
    for option, value, message in (
        ("--drop-path", "0.1", "drop_path 0.2, not 0.1"),
        ("--seed", "7", "seed 0, not 7"),
        ("--model", "tiny", "model 'micro', not 'tiny'"),
        ("--batch-size", "16", "batch_size 32, not 16"),
        ("--clip", "1", "clip None, not 1.0"),
    ):
        assert f"was started with {message}" in refuse(*words, part, "--resume", option, value)
    assert "holds an unfinished run" in refuse(*words, part)
    assert contents(part) == before

    other = tmp_path / "other"
    assert run(*words, other, "--layout", "beit", "--stop-after", "1") == 0
    checkpoint = part / "checkpoint.safetensors"
    torch.save({"trap": Trap(tmp_path / "executed")}, tmp_path / "scratch")
    for damaged, message in (
        ((other / checkpoint.name).read_bytes(), "does not fit this model"),
        (before[checkpoint.name][:-9], "is truncated or not a safetensors file"),
        (b"", "is truncated or not a safetensors file"),
        (pickle.dumps(Trap(tmp_path / "executed")), "is truncated or not a safetensors file"),
        ((tmp_path / "scratch").read_bytes(), "is truncated or not a safetensors file"),
    ):
        checkpoint.write_bytes(damaged)
        assert message in refuse(*words, part, "--resume")
        assert contents(part) == {**before, checkpoint.name: damaged}
        # the same file as a start of something new
        assert message in refuse(*words, tmp_path / "new", "--init-from", part)
        assert message in refuse(*words, tmp_path / "new", "--init-from", checkpoint)
        assert not (tmp_path / "new").exists()
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(Trap(tmp_path / "executed")))  # noqa: S301 - the trap does work
    assert (tmp_path / "executed").exists()


def test_a_run_goes_on_with_the_same_data_and_tokens_only(
    tokens: Path, tmp_path: Path, noise: Any, refuse: Callable[..., str]
) -> None:
    data, own = tmp_path / "data.npz", tmp_path / "own"
    np.savez(data, images=noise(64, 3, 16, 16))
    shutil.copytree(tokens, own)
    words = ("pretrain", "--data", f"npz:{data}?layout=nchw", "--tokenizer", own, *SHORT, "--out", tmp_path / "run")
    assert run(*words, "--stop-after", "1") == 0
    half = contents(tmp_path / "run")
    np.savez(data, images=noise(64, 3, 16, 16, seed=5))
    assert f"the data is not what {tmp_path / 'run'} was begun with" in refuse(*words, "--resume")
    np.savez(data, images=noise(64, 3, 16, 16))
    shutil.rmtree(own)
    assert run("fit", "kmeans", "--data", f"npz:{data}?layout=nchw", "--k", "12", "--patch-size", "4", "--seed", "1",
               "--out", own) == 0  # fmt: skip
    assert "the target is not what" in refuse(*words, "--resume")
    assert contents(tmp_path / "run") == half
    shutil.rmtree(own)
    shutil.copytree(tokens, own)
    assert run(*words, "--resume") == 0


def test_what_is_read_is_not_written_over(tokens: Path, tmp_path: Path, refuse: Callable[..., str]) -> None:
    shutil.copytree(tokens, tmp_path / "own")
    words = ("pretrain", "--data", DATA.format(channels=3), *SHORT, "--out", tmp_path / "own", "--overwrite")
    assert "holds --tokenizer, which would be lost" in refuse(*words, "--tokenizer", tmp_path / "own")
    teacher = f"run:{tmp_path / 'own'}?layer=1"
    assert "holds --teacher, which would be lost" in refuse(*words, "--target", "features", "--teacher", teacher)
    assert contents(tmp_path / "own") == contents(tokens)


def test_a_labels_tokenizer_needs_labels(tmp_path: Path, noise: Any, refuse: Callable[..., str]) -> None:
    np.savez(tmp_path / "with.npz", images=noise(40, 3, 16, 16), labels=np.arange(40) % 4)
    np.savez(tmp_path / "bare.npz", images=noise(40, 3, 16, 16))
    labelled, bare = (f"npz:{tmp_path / name}.npz?layout=nchw" for name in ("with", "bare"))
    assert run("fit", "labels", "--data", labelled, "--patch-size", "4", "--out", tmp_path / "labels") == 0
    words = ("--tokenizer", tmp_path / "labels", "--out", tmp_path / "run", *SHORT, "--epochs", "1")
    line = refuse("pretrain", "--data", bare, *words)
    assert "bare.npz?layout=nchw has no labels, and the tokenizer" in line
    assert not (tmp_path / "run").exists()
    assert run("pretrain", "--data", labelled, *words) == 0


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_bytes(tmp_path: Path) -> None:
    words = ["pretrain", "--data", "textures:?images=640&grid=4&patch=4", "--target", "pixels", *SHORT, "--out"]
    command = [sys.executable, str(Path(__file__).parents[1] / "launch.py"), *words]
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

    views = MaskedCollator((4, 4), Masking())
    batches = SeededBatches(open_source(DATA.format(channels=3)), 16, 3, views, "crop")
    whole, rest = list(batches(1, 0)), list(batches(1, 4))
    assert len(whole) == 6
    for first, second in zip(whole[4:], rest, strict=True):
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.mask.keep, second.mask.keep)
    other = next(iter(batches(2, 0)))
    assert not torch.equal(other.images, whole[0].images)


def test_a_decoder_of_another_size(tmp_path: Path) -> None:
    words = ("--target", "pixels", "--decoder-width", "64", "--decoder-depth", "2")
    assert run("pretrain", "--data", DATA.format(channels=3), *words, *SHORT, "--out", tmp_path / "run") == 0
    shapes = {name: tuple(value.shape) for name, value in load_file(tmp_path / "run" / "decoder.safetensors").items()}
    assert shapes["decoder_embed.weight"] == (64, 128)
    assert {name.split(".")[1] for name in shapes if name.startswith("decoder_blocks")} == {"0", "1"}


@pytest.mark.parametrize("kind", [TokenTarget, VectorTarget], ids=lambda kind: kind.kind)
def test_targets_computed_once_are_those_of_every_step(
    kind: type[Target], tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("pretrain", "--data", DATA.format(channels=3), "--target", kind.kind, "--tokenizer", tokens, *SHORT)
    words = (*words, "--augment", "none")
    assert run(*words, "--out", tmp_path / "often") == 0
    calls: list[int] = []
    forward = kind.forward

    def counted(self: Target, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        calls.append(len(images))
        return forward(self, images, labels)

    monkeypatch.setattr(kind, "forward", counted)
    assert run(*words, "--out", tmp_path / "once", "--cache-tokens") == 0
    assert calls[0] == 1  # a trial
    assert sum(calls[1:]) <= 96 + 16  # all images, and those of the picture at the end
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "often" / file).read_bytes()


def test_help_is_quick() -> None:
    """What takes seconds to import is imported where it works."""
    code = "import sys; from clustermim.stages.pretrain import pretrain; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"lightning_fabric", "matplotlib", "scipy.signal", "sklearn"} & set(loaded)
