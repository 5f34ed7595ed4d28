"""Tar shards that the tests write with webdataset's own writer."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from clustermim.data import open_source, shards
from clustermim.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 6, 5, 3), dtype=np.uint8)
LABELS = [i % 3 for i in range(24)]
TRUE = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


def to_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PNGS = [to_png(pixels) for pixels in PIXELS]


def write(path: Path, rows: range, **members: Any) -> Path:
    """A shard of these images; other members, such as cls=…, are functions of the row that give bytes."""
    with path.open("wb") as file, webdataset.TarWriter(file, encoder=False) as writer:
        for row in rows:
            sample = {name.replace("_", "."): make(row) for name, make in members.items()}
            writer.write({"__key__": f"{row:04d}", **({"png": PNGS[row]} | sample)})
    return path


def label(row: int) -> bytes:
    return str(LABELS[row]).encode()


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """Three shards of 10, 6 and 8 images with labels."""
    for number, rows in enumerate((range(10), range(10, 16), range(16, 24))):
        write(tmp_path / f"{number:03d}.tar", rows, cls=label)
    return f"wds:{tmp_path}/{{000..002}}.tar"


def test_order_labels_and_shape(pattern: str) -> None:
    source = open_source(pattern)
    assert len(source) == 24
    assert source.shape == (3, 6, 5)
    assert source.labels is not None
    assert source.labels.tolist() == LABELS
    assert source.class_names == ("0", "1", "2")
    batches = list(source.batches(9))
    assert [len(batch.images) for batch in batches] == [9, 9, 6]
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(24))
    assert torch.equal(torch.cat([batch.images for batch in batches]), TRUE)


def test_read_by_position(pattern: str) -> None:
    source = open_source(pattern)
    batch = source.read([17, 3, 3, 12])
    assert torch.equal(batch.images, TRUE[[17, 3, 3, 12]])
    assert batch.labels is not None
    assert batch.labels.tolist() == [2, 0, 0, 0]
    image, one = source[23]
    assert torch.equal(image, TRUE[23])
    assert one == 2
    with pytest.raises(IndexError):
        source.read([24])


def test_shuffle_is_seeded_and_lines_up(pattern: str) -> None:
    source = open_source(pattern)
    orders = []
    for seed in (0, 0, 1):
        batches = list(source.batches(5, seed=seed))
        for batch in batches:
            assert torch.equal(batch.images, TRUE[batch.indices])
            assert batch.labels is not None
            assert batch.labels.tolist() == [LABELS[i] for i in batch.indices.tolist()]
        orders.append(torch.cat([batch.indices for batch in batches]).tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(24))


@pytest.mark.parametrize("seed", [None, 4])
def test_ranks_share_one_order(pattern: str, seed: int | None) -> None:
    source = open_source(pattern)
    whole = torch.cat([b.indices for b in source.batches(4, seed=seed)])
    for rank in range(3):
        part = torch.cat([b.indices for b in source.batches(4, seed=seed, rank=rank, world_size=3)])
        assert part.tolist() == whole[rank::3].tolist()


def test_images_of_few_shards_are_shuffled_together(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHUFFLED_SHARDS", 1)
    source = open_source(pattern)
    order = source.shuffle(0)
    shard = np.searchsorted([10, 16], order, side="right")
    assert np.count_nonzero(np.diff(shard)) == 2
    assert sorted(order) == list(range(24)) != order.tolist()


def test_a_stopped_iteration_ends_its_thread(pattern: str) -> None:
    import threading

    stream = open_source(pattern).batches(2)
    next(stream)
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_common_options(pattern: str) -> None:
    source = open_source(f"{pattern}?limit=7&size=4&channels=1")
    assert len(source) == 7
    assert source.shape == (1, 4, 4)
    batches = list(source.batches(3, seed=1))
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(7))


def test_fingerprint(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    first = write(tmp_path / "a" / "x.tar", range(5), cls=label)
    same = write(tmp_path / "b" / "y.tar", range(5), cls=label)
    other = write(tmp_path / "c" / "x.tar", range(5), cls=lambda row: b"0")
    prints = [open_source(f"wds:{path}").fingerprint for path in (first, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_labels_in_json(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", range(6), json=lambda row: json.dumps({"label": LABELS[row], "x": "y"}).encode())
    source = open_source(f"wds:{tmp_path}/*.tar")
    assert source.labels is not None
    assert source.labels.tolist() == LABELS[:6]


def test_json_without_labels_is_no_labels(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", range(6), json=lambda row: b'{"caption": "a cat"}')
    assert open_source(f"wds:{tmp_path}/*.tar").labels is None


def test_named_members(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", range(6), jpg=lambda row: b"bad", cls=lambda row: b"9", true_cls=label)
    source = open_source(f"wds:{tmp_path}/a.tar?image=png&label=true.cls")
    assert torch.equal(source.read(range(6)).images, TRUE[:6])
    assert source.labels is not None
    assert source.labels.tolist() == LABELS[:6]


class Trap:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    import pickle

    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    path = write(tmp_path / "a.tar", range(3), pyd=lambda row: trap, pkl=lambda row: trap, pth=lambda row: trap)
    assert len(list(open_source(f"wds:{path}").batches(2))) == 2
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("place", ["pipe:touch sprung", "gs://bucket/a.tar", "s3://b/a.tar", "https://x/a.tar"])
def test_only_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="only files of this machine are read"):
        open_source(f"wds:{place}")
    assert list(tmp_path.iterdir()) == []


def test_too_many_shards_are_refused() -> None:
    for pattern, reason in (
        ("{0..1000000000}", "1,000,000,001 shards or more, and 100,000 are the most"),
        ("{5..2}", "is no range"),
        ("{0..99999}{0..9}", "1,000,000 shards or more"),
        ("{a,b}" * 5000, "131,072 shards or more"),  # nor any depth of recursion
    ):
        with pytest.raises(DataError, match=reason):
            open_source(f"wds:x-{pattern}.tar")


def test_compressed_shards_are_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(write(tmp_path / "a.tar", range(3)).read_bytes()))
    with pytest.raises(DataError, match=r"a\.tar\.gz: damaged, or compressed: unpack it"):
        open_source(f"wds:{path}")


def test_missing_shards_and_shards_without_images(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", range(2))
    with pytest.raises(DataError, match=r"1\.tar is not there"):
        open_source(f"wds:{tmp_path}/{{0..1}}.tar")
    empty = tmp_path / "2.tar"
    with webdataset.TarWriter(str(empty)) as writer:
        writer.write({"__key__": "a", "txt": "hello"})
    assert len(open_source(f"wds:{tmp_path}/{{0,2}}.tar")) == 2
    with pytest.raises(DataError, match="no images in these shards"):
        open_source(f"wds:{empty}")


@pytest.mark.parametrize("keep", [0, 100, 700, 0.5, 0.7])
def test_truncated_shards(pattern: str, tmp_path: Path, keep: float) -> None:
    path = sorted(tmp_path.glob("001.*"))[0]
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data) if keep < 1 else keep)])
    with pytest.raises(DataError, match=r"001\.tar.*damaged"):
        open_source(pattern)


def test_damage_in_the_middle_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", range(6), cls=label)
    source = open_source(f"wds:{path}")
    assert isinstance(source, shards.ShardSource)
    data = bytearray(path.read_bytes())
    start = int(source._shards[0].starts[3])
    data[start - 512 : start] = b"\x55" * 512  # the header of the fourth image
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="damaged"):
        open_source(f"wds:{path}")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"cls": lambda row: b"cat"}, r"0000\.cls does not hold a label"),
        ({"json": lambda row: b"{"}, r"0000\.json does not hold a label"),
        ({"cls": lambda row: b"\xff"}, r"0000\.cls does not hold a label"),
        ({"cls": lambda row: b"-2"}, "must be 0 or more"),
        ({"json": lambda row: b'{"label": 1}' if row else b"{}"}, "1 of 4 labels are missing"),
    ],
)
def test_bad_labels(tmp_path: Path, members: dict[str, Any], reason: str) -> None:
    path = write(tmp_path / "a.tar", range(4), **members)
    with pytest.raises(DataError, match=reason):
        open_source(f"wds:{path}")


def test_huge_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.tar", range(4), cls=lambda row: b" " * 1000 + b"1")
    monkeypatch.setattr(shards, "MEMBER_BYTES", 500)
    with pytest.raises(DataError, match=r"0000\.cls has 1,001 bytes"):
        open_source(f"wds:{path}")


def test_bad_images(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", range(5), png=lambda row: b"nothing" if row == 2 else PNGS[row], cls=label)
    with pytest.raises(DataError, match=r"a\.tar: 0002\.png: not a JPEG"):
        list(open_source(f"wds:{path}").batches(5))
    source = open_source(f"wds:{path}?on_bad_image=skip")
    (batch,) = source.batches(5)
    assert batch.indices.tolist() == [0, 1, 3, 4]
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1, 0, 1]
    assert list(source.skipped) == [f"{path}: 0002.png"]
