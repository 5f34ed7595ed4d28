"""Images decoded once: the same batches as from the files, whatever changes, and what cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.cli import main
from clustermim.data import Source, open_source
from clustermim.data.opening import DecodedSource, place_of


@pytest.fixture
def photos(
    tmp_path: Path, noise: Callable[..., Any], encode: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder of 30 images of two classes, one of them damaged."""
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path / "home"))
    for row in range(30):
        place = tmp_path / "photos" / "ab"[row % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{row:02}.png").write_bytes(encode(noise(20 + row, 24, 3, seed=row)) if row != 7 else b"no image")
    return tmp_path / "photos"


def all_batches(source: Source) -> list[tuple[Any, ...]]:
    """What the batches of some orders and ranks hold."""
    among = np.arange(len(source)) % 3 > 0
    found: list[tuple[Any, ...]] = []
    for options in ({}, {"seed": 1}, {"seed": 1, "rank": 1, "world_size": 2}, {"seed": 2, "skip": 1}, {"among": among}):
        for batch in source.batches(8, **options):  # type: ignore[arg-type]
            assert batch.labels is not None
            found.append((batch.images.tolist(), batch.labels.tolist(), batch.indices.tolist()))
    return found


@pytest.mark.parametrize("options", ["size=16", "size=16&limit=20&channels=1"])
def test_the_same_images_in_the_same_order(options: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"folder:{photos}?{options}&on_bad_image=skip"
    before = open_source(data)
    expected = all_batches(before)
    assert main(["data", "decode", data]) == 0
    assert "reads it from now on" in capsys.readouterr().out
    after = open_source(data)
    assert isinstance(after, DecodedSource)
    assert all_batches(after) == expected
    for name in ("spec", "shape", "class_names", "fingerprint", "skipped"):
        assert getattr(after, name) == getattr(before, name)
    assert after.labels is not None
    assert before.labels is not None
    assert after.labels.tolist() == before.labels.tolist()
    assert torch.equal(after[0][0], before[0][0])
    assert main(["data", "decode", data]) == 0
    assert "is decoded already" in capsys.readouterr().out


def test_files_that_change_are_decoded_from_the_files(
    photos: Path, noise: Callable[..., Any], encode: Callable[..., bytes]
) -> None:
    data = f"folder:{photos}?size=16&on_bad_image=skip"
    assert main(["data", "decode", data]) == 0
    (photos / "a" / "00.png").write_bytes(encode(noise(50, 50, 3, seed=99)))
    assert not isinstance(open_source(data), DecodedSource)


@pytest.mark.parametrize("damage", [b"", b"no array"])
def test_a_damaged_array_is_not_used(damage: bytes, photos: Path) -> None:
    data = f"folder:{photos}?size=16&on_bad_image=skip"
    assert main(["data", "decode", data]) == 0
    place_of(open_source(data)).write_bytes(damage)
    assert not isinstance(open_source(data), DecodedSource)


def test_what_cannot_be_decoded(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "decode", f"folder:{photos}?size=16"]) == 2
    assert "07.png" in capsys.readouterr().err.splitlines()[-1]  # not without on_bad_image=skip
    assert list((tmp_path / "home" / "decoded").iterdir()) == []
    for data in ("textures:?images=8", "digits?limit=9"):
        assert main(["data", "decode", data]) == 2
        assert "there is nothing to decode" in capsys.readouterr().err


def test_a_full_disk_is_told_first(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clustermim.data.opening.shutil.disk_usage", lambda path: type("Use", (), {"free": 10}))
    assert main(["data", "decode", f"folder:{photos}?size=16&on_bad_image=skip"]) == 2
    assert "GB are free: choose a smaller ?size=" in capsys.readouterr().err
    assert not (tmp_path / "home" / "decoded").exists()
