"""What fine-tuning and MAE's probe refuse: in one line, with nothing written and nothing executed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

Command = Callable[..., int]
SHORT = ("--batch-size", "16", "--epochs", "2", "--device", "cpu", "--augment", "none")
# one option of each, to be changed when a run is resumed, and how the line names it
STAGES = {
    "finetune": (("finetune",), (*SHORT, "--mixup", "0", "--cutmix", "0", "--randaugment-ops", "0")),
    "probe": (("probe",), (*SHORT, "--protocol", "mae")),
}
CHANGED = {
    "finetune": ("--drop-path", "0.1", "started with drop_path 0.0, not 0.1"),
    "probe": ("--optimizer", "sgd", "started with"),
}


class Trap:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.folder),))


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> str:
    """Each of both."""
    name: str = request.param
    return name


def words_of(stage: str, run: Path, train: str, test: str, out: Path) -> tuple[str | Path, ...]:
    first, options = STAGES[stage]
    return (*first, run, "--data", train, "--test-data", test, "--out", out, *options)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder but the cache, hidden ones too."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "home" not in path.relative_to(folder).parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def pickles(trap: Trap, path: Path) -> list[bytes]:
    """The trap as pickle and as torch write it."""
    torch.save({"cls_token": torch.zeros(1), "trap": trap}, path)
    return [pickle.dumps(trap), path.read_bytes()]


def test_the_trap_snaps(tmp_path: Path) -> None:
    """Without this, the tests below would pass with a trap that does nothing."""
    pickle.loads(pickle.dumps(Trap(tmp_path / "executed")))  # noqa: S301
    assert (tmp_path / "executed").exists()


def test_data(
    stage: str,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
) -> None:
    run, good = save_micro(), save_bright()
    np.savez(tmp_path / "bare.npz", images=np.zeros((20, 3, 8, 8), np.uint8))
    bare = f"npz:{tmp_path / 'bare.npz'}?layout=nchw"
    more, five, few = (
        save_bright("more", classes=3),
        save_bright("five", channels=5),
        save_bright("few", count=15),
    )
    before = contents(tmp_path)
    for train, test, message in (
        (bare, good, "bare.npz?layout=nchw has no labels"),
        (good, bare, "bare.npz?layout=nchw has no labels"),
        (good, more, "1 classes that the train set lacks: 2;"),
        (five, five, "made for 3"),
        (few, few, "15 images, fewer than a batch of 16"),
        (f"npz:{tmp_path / 'nowhere.npz'}", good, "nowhere.npz"),
    ):
        assert message in refuse(*words_of(stage, run, train, test, tmp_path / "out"))
        assert contents(tmp_path) == before
        assert not (tmp_path / "out").exists()


def test_encoders(
    stage: str,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
) -> None:
    run, data, out = save_micro(), save_bright(), tmp_path / "out"
    words = words_of(stage, run, data, data, out)
    weights, record = (run / "encoder.safetensors"), (run / "encoder.json")
    whole, described = weights.read_bytes(), json.loads(record.read_bytes())
    assert "holds no pretrained encoder" in refuse(*words_of(stage, tmp_path / "nowhere", data, data, out))
    for length in (0, 100, len(whole) - 1):
        weights.write_bytes(whole[:length])
        assert "truncated or was changed" in refuse(*words)
    for foreign in pickles(Trap(tmp_path / "executed"), tmp_path / "scratch"):
        weights.write_bytes(foreign)
        record.write_text(json.dumps(described))
        assert "truncated or was changed" in refuse(*words)
        # whoever forges the weights can forge their hash
        record.write_text(json.dumps({**described, "weights_sha256": hashlib.sha256(foreign).hexdigest()}))
        assert "truncated or was changed" in refuse(*words)
    weights.write_bytes(whole)
    for foreign in (pickle.dumps(Trap(tmp_path / "executed")), b"", b"[]"):
        record.write_bytes(foreign)
        assert "encoder.json" in refuse(*words)
    weights.unlink()
    assert "encoder.safetensors is missing" in refuse(*words)
    assert not (tmp_path / "executed").exists()
    assert not out.exists()


def test_measurements_do_not_replace_what_they_measure(
    refuse: Callable[..., str], save_micro: Callable[..., Path], save_bright: Callable[..., str], tmp_path: Path
) -> None:
    run, data = save_micro(), save_bright(count=32)
    before = contents(tmp_path)
    for stage, what in (("probe", "the encoder to measure"), ("knn", "the encoder to measure")):
        words = (stage, run, "--data", data, "--test-data", data, "--out", run)
        for options in ((), ("--overwrite",)):
            assert f"holds {what}, which would be lost" in refuse(*words, *options)
    assert contents(tmp_path) == before


def test_places(
    stage: str,
    command: Command,
    refuse: Callable[..., str],
    save_micro: Callable[..., Path],
    save_bright: Callable[..., str],
    tmp_path: Path,
) -> None:
    run, data, out = save_micro(), save_bright(count=32), tmp_path / "out"
    before = contents(tmp_path)
    for place in (run, tmp_path):
        for options in ((), ("--overwrite",), ("--resume",)):
            assert "holds the encoder to start from" in refuse(*words_of(stage, run, data, data, place), *options)
    assert contents(tmp_path) == before

    words = words_of(stage, run, data, data, out)
    assert command(*words, "--stop-after", "1") == 0
    unfinished = contents(tmp_path)
    assert "holds an unfinished run" in refuse(*words)
    option, value, message = CHANGED[stage]
    assert message in refuse(*words, "--resume", option, value)
    assert "started with seed 0, not 1" in refuse(*words, "--resume", "--seed", "1")
    assert "started with epochs 2, not 3" in refuse(*words, "--resume", "--epochs", "3")
    assert contents(tmp_path) == unfinished

    checkpoint = out / "checkpoint.safetensors"
    kept = checkpoint.read_bytes()
    for damaged in (kept[:-9], b"", *pickles(Trap(tmp_path / "executed"), tmp_path / "scratch")):
        checkpoint.write_bytes(damaged)
        assert "is truncated or not a safetensors file" in refuse(*words, "--resume")
        assert checkpoint.read_bytes() == damaged  # left for the user to judge
    assert not (tmp_path / "executed").exists()
    assert not (out / "summary.json").exists()

    checkpoint.write_bytes(kept)
    assert command(*words, "--resume") == 0
    complete = contents(tmp_path)
    assert "holds a complete run" in refuse(*words)
    assert "holds a complete run" in refuse(*words, "--resume")
    assert contents(tmp_path) == complete


@pytest.mark.parametrize(
    "options",
    [
        ("--pooling", "avg"),
        ("--epochs", "3"),
        ("--optimizer", "sgd"),
        ("--base-lr", "0.5"),
        ("--warmup-epochs", "1"),
        ("--augment", "none"),
        ("--precision", "32-true"),
        ("--track", "[tensorboard]"),
        ("--stop-after", "1"),
        ("--resume",),
    ],
    ids=" ".join,
)
def test_options_of_mae_with_lbfgs(
    options: tuple[str, ...], refuse: Callable[..., str], save_micro: Callable[..., Path], tmp_path: Path
) -> None:
    run = save_micro()
    before = contents(tmp_path)
    line = refuse("probe", run, "--data", "digits/train", "--test-data", "digits/test", *options)
    assert line == f"error: {options[0]} is for --protocol mae"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("measure", ["probe", "knn"])
def test_quick_measures_are_replaced_when_asked_and_make_no_folder_of_a_typo(
    measure: str, command: Command, refuse: Callable[..., str], save_micro: Callable[..., Path], tmp_path: Path
) -> None:
    words = ("--data", "digits/train", "--test-data", "digits/test")
    assert "encoder.safetensors is missing" in refuse(measure, tmp_path / "typo", *words)
    assert not (tmp_path / "typo").exists()
    run, out = save_micro(channels=1), tmp_path / "out"
    assert command(measure, run, *words, "--out", out) == 0
    assert "replace it with --overwrite" in refuse(measure, run, *words, "--out", out)
    assert command(measure, run, *words, "--out", out, "--overwrite") == 0
