from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.data import open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.data.cache import cache_folder, fingerprint_of, write_cached
from clustermim.data.opening import View
from clustermim.data.source import prefetch
from clustermim.errors import DataError


def order(source: Any, **options: Any) -> list[int]:
    return torch.cat([batch.indices for batch in source.batches(7, **options)]).tolist()


@pytest.fixture
def source(noise: Any) -> ArraySource:
    return ArraySource("mine", noise(50, 3, 6, 8), np.arange(50) % 4)


def test_batches(source: ArraySource) -> None:
    assert order(source) == list(range(50))
    shuffled = order(source, seed=3)
    assert sorted(shuffled) == list(range(50))
    assert shuffled != list(range(50))
    assert shuffled == order(source, seed=3) != order(source, seed=4)
    sizes = [len(batch.images) for batch in source.batches(7)]
    assert sizes == [7] * 7 + [1]
    for batch in source.batches(7, seed=0):
        assert np.array_equal(batch.images, source.images[batch.indices.numpy()])
        assert batch.labels is not None
        assert batch.labels.tolist() == [i % 4 for i in batch.indices.tolist()]


def test_batches_over_ranks(source: ArraySource) -> None:
    parts = [order(source, seed=1, rank=rank, world_size=3) for rank in range(3)]
    assert sorted(parts[0] + parts[1] + parts[2]) == list(range(50))
    assert parts[1] == order(source, seed=1)[1::3]


def test_one_image(source: ArraySource) -> None:
    image, label = source[5]
    assert np.array_equal(image, source.images[5])
    assert label == 1
    with pytest.raises(IndexError):
        source[50]
    assert len(list(source)) == 50  # type: ignore[call-overload]


def test_to_float(source: ArraySource) -> None:
    images = to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    assert images.dtype == torch.float32
    assert images.tolist() == pytest.approx([0, 0.2, 1])


def test_limit() -> None:
    whole, part, less = (open_source(f"digits{option}") for option in ("", "?limit=100", "?limit=40"))
    assert isinstance(part, View)
    assert isinstance(less, View)
    assert len(part) == 100
    assert (np.diff(part.positions) > 0).all()
    assert part.positions[-1] > 1000  # not the first hundred
    assert set(less.positions.tolist()) < set(part.positions.tolist())
    batch = part.read([7, 3])
    assert batch.images.equal(whole.read(part.positions[[7, 3]]).images)
    assert batch.indices.tolist() == [7, 3]
    assert whole.labels is not None
    assert batch.labels is not None
    assert batch.labels.tolist() == whole.labels[part.positions[[7, 3]]].tolist()
    assert np.array_equal(open_source("digits?limit=100").read(range(100)).images, part.read(range(100)).images)
    assert len(open_source("digits?limit=99999")) == 1437


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ("size=5", (1, 5, 5)),
        ("size=16x12", (1, 16, 12)),
        ("channels=3", (3, 8, 8)),
        ("channels=3&size=4x20&limit=30", (3, 4, 20)),
    ],
)
def test_size_and_channels(options: str, shape: tuple[int, int, int]) -> None:
    source = open_source(f"digits?{options}")
    assert source.shape == shape
    images = source.read([0, 2, 5]).images
    assert images.shape == (3, *shape)
    assert images.dtype == torch.uint8
    assert source.spec == f"digits/train?{options}"
    assert order(source, seed=0) == order(open_source(source.spec), seed=0)


def test_options_change_the_fingerprint() -> None:
    texts = [
        "digits",
        "digits/test",
        "digits?limit=9",
        "digits?limit=8",
        "digits?size=9",
        "digits?channels=3",
    ]
    prints = [open_source(text).fingerprint for text in texts]
    assert len(set(prints)) == len(texts)
    assert all(len(one) == 16 for one in prints)
    assert open_source("digits?size=9&limit=8").fingerprint == open_source("digits?limit=8&size=9").fingerprint


def test_channels_that_cannot_be_had(tmp_path: Path, noise: Any) -> None:
    np.savez(tmp_path / "a.npz", images=noise(4, 5, 6, 8))
    spec = f"npz:{tmp_path}/a.npz?layout=nchw"
    assert open_source(f"{spec}&size=3x4").shape == (5, 3, 4)
    with pytest.raises(DataError, match="channels=3 cannot be had from 5 channels"):
        open_source(f"{spec}&channels=3")


def test_prefetch_gives_all_in_order() -> None:
    assert list(prefetch(iter(range(100)), depth=3)) == list(range(100))
    assert list(prefetch(iter([]))) == []


def test_prefetch_passes_an_exception_on_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise DataError("the third is bad")

    reader = prefetch(items())
    assert [next(reader), next(reader)] == [1, 2]
    with pytest.raises(DataError, match="the third is bad"):
        next(reader)


def workers() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_abandoned_prefetch_stops_its_thread(source: ArraySource) -> None:
    before = workers()
    made = []

    def items() -> Iterator[int]:
        for item in range(10**9):
            made.append(item)
            yield item

    reader = prefetch(items(), depth=2)
    assert next(reader) == 0
    assert workers() == before + 1
    del reader
    gc.collect()
    assert workers() == before
    assert len(made) <= 5  # no more than it may make in advance
    for _ in source.batches(3):
        break
    gc.collect()
    assert workers() == before


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CLUSTERMIM_HOME")
    assert cache_folder().name == "clustermim"


def test_write_cached(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_cached(path, b"one")
    write_cached(path, lambda file: file.writelines([b"t", b"wo"]))
    assert path.read_bytes() == b"two"

    def fail(file: Any) -> None:
        file.write(b"half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        write_cached(path, fail)
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    with pytest.raises(DataError, match="set CLUSTERMIM_HOME"):
        write_cached(path / "below a file", b"")


def test_fingerprint_of() -> None:
    array = np.arange(6)
    texts: list[tuple[Any, ...]] = [("ab", "c"), ("a", "bc"), ("abc",), (array,), (array.reshape(2, 3),)]
    texts.append((array.astype(np.int32),))
    assert len({fingerprint_of(*parts) for parts in texts}) == len(texts)
    assert fingerprint_of(array) == fingerprint_of(array.astype(">i8"))
    assert fingerprint_of(array[::2]) == fingerprint_of(array[::2].copy())
    assert fingerprint_of("abc") == "ce91dc5eec0139ad"  # the same on any machine


def test_a_subset_and_the_rest_are_the_whole() -> None:
    whole = open_source("digits/train")
    rest, held_out = (open_source("digits/train", subset=name) for name in ("train", "validation"))
    assert isinstance(rest, View)
    assert isinstance(held_out, View)
    assert len(held_out) == len(whole) // 10
    assert sorted([*rest.positions, *held_out.positions]) == list(range(len(whole)))
    assert open_source("digits/train?subset=validation").fingerprint == held_out.fingerprint != rest.fingerprint
    few = open_source("digits/train?subset=validation&limit=5")
    assert set(few.positions) < set(held_out.positions)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="subset=test must be train or validation"):
        open_source("digits/train?subset=test")
