"""CIFAR sources from a cache that the tests fill with arrays of the right shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from clustermim.data import open_source
from clustermim.data.cifar import DATASETS, checksums, load_split
from clustermim.errors import DataError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path))
    return tmp_path


def fill(home: Path, name: str, split: str = "test", classes: int = 10, count: int = 10_000) -> Path:
    folder = home / name
    folder.mkdir(exist_ok=True)
    labels = np.arange(count) % classes
    images = np.zeros((count, 3, 32, 32), np.uint8) + (labels % 256).astype(np.uint8)[:, None, None, None]
    np.save(folder / f"{split}_images.npy", images)
    np.save(folder / f"{split}_labels.npy", labels)
    origin = json.loads((folder / "origin.json").read_text()) if (folder / "origin.json").exists() else {}
    (folder / "origin.json").write_text(json.dumps(origin | {split: checksums(DATASETS[name], split, images, labels)}))
    return folder


def test_reads_the_cache(home: Path) -> None:
    fill(home, "cifar10")
    source = open_source("cifar10/test")
    assert len(source) == 10_000
    assert source.shape == (3, 32, 32)
    assert source.class_names[6] == "frog"
    batch = source.read([5, 13])
    assert batch.labels is not None
    assert batch.labels.tolist() == [5, 3]
    assert batch.images[:, 0, 0, 0].tolist() == [5, 3]


def test_pixels_stay_on_disk(home: Path) -> None:
    folder = fill(home, "cifar10")
    images, _ = load_split(DATASETS["cifar10"], folder, "test")
    assert isinstance(images, np.memmap)


def test_fingerprint_is_stable_and_tells_splits_apart(home: Path) -> None:
    fill(home, "cifar10")
    fill(home, "cifar10", "train", count=50_000)
    prints = {text: open_source(text).fingerprint for text in ("cifar10/test", "cifar10:test", "cifar10")}
    assert prints["cifar10/test"] == prints["cifar10:test"] != prints["cifar10"]


def test_says_how_to_download(home: Path) -> None:
    with pytest.raises(DataError, match="cifar10 is not downloaded: run `clustermim data get cifar10`"):
        open_source("cifar10")


@pytest.mark.parametrize("split", ["train", "test"])
def test_missing_split_is_damage(home: Path, split: str) -> None:
    (home / "cifar100").mkdir()
    with pytest.raises(DataError, match=r"cifar100 is damaged.*data get cifar100 --force"):
        open_source(f"cifar100/{split}")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("test_images.npy", np.zeros((9_999, 3, 32, 32), np.uint8)),
        ("test_images.npy", np.zeros((10_000, 3, 32, 32), np.int8)),
        ("test_labels.npy", np.zeros(10_000, np.int32)),
        ("test_labels.npy", np.full(10_000, 10)),
    ],
)
def test_wrong_arrays_are_damage(home: Path, file: str, content: np.ndarray) -> None:
    np.save(fill(home, "cifar10") / file, content)
    with pytest.raises(DataError, match=r"damaged.*run `clustermim data get cifar10 --force`"):
        open_source("cifar10/test")


@pytest.mark.parametrize("keep", [0, 60, 5_000])
def test_truncated_files_are_damage(home: Path, keep: int) -> None:
    path = fill(home, "cifar10") / "test_images.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="damaged"):
        open_source("cifar10/test")


def test_pickled_labels_are_never_loaded(home: Path) -> None:
    folder = fill(home, "cifar10")
    np.save(folder / "test_labels.npy", np.array([print] * 10_000, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="damaged"):
        open_source("cifar10/test")


def test_superclasses_of_cifar100(home: Path) -> None:
    fill(home, "cifar100", classes=100)
    fine, coarse = open_source("cifar100/test"), open_source("cifar100/test?labels=coarse")
    assert len(fine.class_names) == 100
    assert len(coarse.class_names) == 20
    assert fine.labels is not None
    assert coarse.labels is not None
    assert np.bincount(coarse.labels).tolist() == [500] * 20
    apple = fine.class_names.index("apple")
    assert apple == 0
    assert coarse.class_names[coarse.labels[apple]] == "fruit_and_vegetables"
    assert fine.fingerprint != coarse.fingerprint


@pytest.mark.parametrize(
    ("file", "place"), [("test_images.npy", 777_777), ("test_images.npy", -1), ("test_labels.npy", 4000)]
)
def test_one_flipped_bit_is_damage(home: Path, file: str, place: int) -> None:
    path = fill(home, "cifar100") / file
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged in .*another sha256 than it was stored with.*get cifar100 --force"):
        open_source("cifar100/test")


def test_what_an_earlier_version_stored(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cifar10", "cifar100"):
        (fill(home, name) / "origin.json").write_text('{"mirror": "here"}')
    with pytest.raises(DataError, match="another sha256"):  # that of the genuine images is known
        open_source("cifar10/test")
    assert len(open_source("cifar100/test")) == 10_000
    assert "cifar100 has no checksums: damage would not be noticed" in capsys.readouterr().err
