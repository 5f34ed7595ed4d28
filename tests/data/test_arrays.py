from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustermim.data import open_source
from clustermim.data.arrays import ArraySource
from clustermim.errors import DataError


def save(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "a.npz", **arrays)
    return f"npz:{folder / 'a.npz'}"


def test_array_source(noise: Any) -> None:
    images = noise(5, 2, 3, 4)
    source = ArraySource("mine", images, [0, 1, 1, 2, 0])
    batch = source.read([3, 0])
    assert (len(source), source.shape, source.class_names) == (5, (2, 3, 4), ("0", "1", "2"))
    assert np.array_equal(batch.images, images[[3, 0]])
    assert batch.labels is not None
    assert batch.labels.tolist() == [2, 0]
    assert batch.indices.tolist() == [3, 0]
    assert ArraySource("mine", images).labels is None
    assert source.read([]).images.shape == (0, 2, 3, 4)


def test_memory_mapped(tmp_path: Path, noise: Any) -> None:
    np.save(tmp_path / "a.npy", noise(5, 1, 3, 4))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    source = ArraySource("mine", mapped)
    batch = source.read([4, 1])
    assert np.array_equal(batch.images, mapped[[4, 1]])
    assert source.fingerprint == ArraySource("mine", np.array(mapped)).fingerprint


def test_fingerprint_covers_pixels_labels_and_shape(noise: Any) -> None:
    images = noise(4, 1, 2, 6)
    changed = images.copy()
    changed[3, 0, 1, 5] ^= 1
    prints = [
        ArraySource("a", images).fingerprint,
        ArraySource("a", changed).fingerprint,
        ArraySource("a", images.reshape(4, 1, 6, 2)).fingerprint,
        ArraySource("a", images, [0, 1, 0, 1]).fingerprint,
        ArraySource("a", images, [0, 1, 0, 0]).fingerprint,
    ]
    assert len(set(prints)) == 5
    assert ArraySource("elsewhere", images.copy()).fingerprint == prints[0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"shape \(3,\)"),
        ([0.0, 1.0, 1.0], "whole numbers"),
        ([0, -1, 1], "0 or more, found -1"),
        ([0, 3_000_000_000_000, 1], "label 3000000000000 is no number of a class"),
        (np.array([0, 2**63, 1], dtype=np.uint64), "is no number of a class"),
    ],
)
def test_bad_labels(noise: Any, labels: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ArraySource("mine", noise(3, 1, 2, 2), np.array(labels))


def test_more_labels_than_names(noise: Any) -> None:
    with pytest.raises(DataError, match="label 2 is beyond the 2 names"):
        ArraySource("mine", noise(3, 1, 2, 2), [0, 1, 2], ["a", "b"])


@pytest.mark.parametrize("shape", [(0, 1, 2, 2), (3, 2, 2), (3, 1, 0, 2)])
def test_bad_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="non-empty array"):
        ArraySource("mine", np.zeros(shape, np.uint8))


@pytest.mark.parametrize(("images", "labels"), [("images", "labels"), ("x", "y"), ("data", "labels")])
def test_npz_keys(tmp_path: Path, noise: Any, images: str, labels: str) -> None:
    pixels = noise(4, 6, 8, 3)
    spec = save(tmp_path, **{images: pixels, labels: np.array([1, 0, 1, 2]), "other": np.zeros(3)})
    source = open_source(spec)
    assert source.shape == (3, 6, 8)
    assert np.array_equal(source.read([0, 1, 2, 3]).images, pixels.transpose(0, 3, 1, 2))
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0, 1, 2]
    assert source.spec == spec


@pytest.mark.parametrize(
    ("shape", "option", "expected"),
    [
        ((4, 6, 8), "", (1, 6, 8)),
        ((4, 3, 6, 8), "", (3, 6, 8)),
        ((4, 6, 8, 3), "", (3, 6, 8)),
        ((4, 5, 6, 8), "?layout=nchw", (5, 6, 8)),
        ((4, 6, 8, 5), "?layout=nhwc", (5, 6, 8)),
        ((4, 3, 6, 3), "?layout=nhwc", (3, 3, 6)),
    ],
)
def test_npz_layouts(
    tmp_path: Path, noise: Any, shape: tuple[int, ...], option: str, expected: tuple[int, ...]
) -> None:
    assert open_source(save(tmp_path, images=noise(*shape)) + option).shape == expected


@pytest.mark.parametrize("shape", [(4, 5, 6, 8), (4, 3, 6, 3)])
def test_npz_layout_that_cannot_be_told(tmp_path: Path, noise: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"layout=nchw or \?layout=nhwc"):
        open_source(save(tmp_path, images=noise(*shape)))


def test_npz_text_labels_and_class_names(tmp_path: Path, noise: Any) -> None:
    source = open_source(save(tmp_path, images=noise(3, 4, 4), labels=np.array(["dog", "cat", "dog"])))
    assert source.class_names == ("cat", "dog")
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0, 1]
    names = np.array(["a", "b", "c"])
    source = open_source(save(tmp_path, images=noise(3, 4, 4), labels=np.array([0, 1, 1]), class_names=names))
    assert source.class_names == ("a", "b", "c")


def test_npz_number_types(tmp_path: Path) -> None:
    def first(images: Any) -> list[int]:
        pixels: list[int] = open_source(save(tmp_path, images=images))[0][0].flatten().tolist()
        return pixels

    assert first(np.array([[[0.0, 0.5, 1.0]]], np.float32)) == [0, 128, 255]
    assert first(np.array([[[0.0, 0.25, 1.0]]], np.float16)) == [0, 64, 255]
    assert first(np.array([[[0, 7, 255]]], np.int64)) == [0, 7, 255]
    assert first(np.array([[[False, True]]])) == [0, 255]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((2, 3, 3), np.nan), "18 of 18 pixel values are NaN or infinite"),
        (np.array([[[0.5, np.inf]]]), "1 of 2 pixel values"),
        (np.array([[[0.0, 255.0]]]), r"\[0, 1\], found 0 to 255.*astype\('uint8'\)"),
        (np.array([[[-0.1, 0.5]]]), "found -0.1"),
        (np.array([[[0, 256]]]), "0…255, found 0 to 256"),
        (np.zeros((2, 2), np.uint8), r"shape \(2, 2\); expected"),
        (np.zeros((0, 3, 3)), "convert them to uint8"),
        (np.array([[["a"]]]), "convert them to uint8"),
    ],
)
def test_npz_bad_pixels(tmp_path: Path, images: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        open_source(save(tmp_path, images=images))
    assert "a.npz" in str(caught.value)


def test_npz_mixed_sizes(tmp_path: Path) -> None:
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros((2, 2)), np.zeros((3, 3))]
    with pytest.raises(DataError, match=r"a\.npz.*mixed size.*\?size=64"):
        open_source(save(tmp_path, images=ragged))


def test_npz_missing_damaged_or_of_other_content(tmp_path: Path, noise: Any) -> None:
    with pytest.raises(DataError, match=r"none\.npz: there is no such file"):
        open_source(f"npz:{tmp_path}/none.npz")
    with pytest.raises(DataError, match=r"a\.npz: no array named images, x or data \(found: pictures\)"):
        open_source(save(tmp_path, pictures=noise(2, 3, 3)))
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "c.npz").write_bytes(b"")
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[: len(whole) // 2])
    for name in "bcd":
        with pytest.raises(DataError, match=rf"{name}\.npz: not a readable \.npz file"):
            open_source(f"npz:{tmp_path}/{name}.npz")
    np.save(tmp_path / "e.npy", noise(2, 3, 3))
    with pytest.raises(DataError, match=r"np\.savez"):
        open_source(f"npz:{tmp_path}/e.npy")


def test_npz_damaged_in_its_pixels(tmp_path: Path) -> None:
    spec = save(tmp_path, images=np.full((2, 3, 3), 77, np.uint8))
    path = tmp_path / "a.npz"
    path.write_bytes(path.read_bytes().replace(bytes([77] * 18), bytes([78] * 18)))
    with pytest.raises(DataError, match=r"a\.npz: not a readable"):
        open_source(spec)


def test_digits() -> None:
    from sklearn.datasets import load_digits

    train, test = open_source("digits"), open_source("digits/test")
    assert (len(train), len(test), train.shape, len(train.class_names)) == (1437, 360, (1, 8, 8), 10)
    assert train.labels is not None
    assert test.labels is not None
    whole = load_digits()
    assert np.array_equal(np.bincount(train.labels) + np.bincount(test.labels), np.bincount(whole.target))
    share = np.bincount(test.labels) / np.bincount(whole.target)
    assert np.allclose(share, 360 / 1797, atol=0.005)
    seen = {row.tobytes() for row in train.read(range(1437)).images.numpy()}
    assert not any(row.tobytes() in seen for row in test.read(range(360)).images.numpy())
    values = np.unique(train.read(range(1437)).images.numpy())
    assert np.array_equal(values, np.rint(np.arange(17) * 255 / 16))
    assert train.fingerprint == open_source("digits").fingerprint != test.fingerprint


def test_digits_are_kept_and_made_again_if_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that scikit-learn, which takes seconds to import, is needed once."""
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path))
    first = open_source("digits/test")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sklearn.datasets", None)  # an import now fails
        assert open_source("digits/test").fingerprint == first.fingerprint
    for content in (b"", b"PK\x03\x04 half a file", (tmp_path / "digits" / "test.npz").read_bytes()[:5000]):
        (tmp_path / "digits" / "test.npz").write_bytes(content)
        assert open_source("digits/test").fingerprint == first.fingerprint
    assert np.load(tmp_path / "digits" / "test.npz")["images"].shape == (360, 1, 8, 8)
