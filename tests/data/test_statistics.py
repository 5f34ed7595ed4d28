from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustermim.data import channel_stats, open_source
from clustermim.data.arrays import ArraySource
from clustermim.errors import DataError


def test_exact_values(home: Path, noise: Any) -> None:
    images = noise(700, 5, 3, 4)
    stats = channel_stats(ArraySource("mine", images))
    assert np.allclose(stats.mean, (images / 255).mean(axis=(0, 2, 3)), rtol=1e-13)
    assert np.allclose(stats.std, (images / 255).std(axis=(0, 2, 3)), rtol=1e-12)
    mean, std = channel_stats(ArraySource("mine", np.array([[[[0, 255]]], [[[255, 0]]]], np.uint8)))
    assert (mean, std) == ((0.5,), (0.5,))
    mean, std = channel_stats(ArraySource("mine", np.full((3, 2, 2, 2), 51, np.uint8)))
    assert (mean, std) == ((0.2, 0.2), (0.0, 0.0))


def test_order_does_not_matter(home: Path, noise: Any) -> None:
    images = noise(600, 3, 5, 4)
    first = channel_stats(ArraySource("mine", images))
    assert channel_stats(ArraySource("mine", images[::-1].copy())) == first


def test_kept_in_the_cache(home: Path, noise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ArraySource("mine", noise(10, 3, 4, 4))
    first = channel_stats(source)
    (file,) = [path for path in home.rglob("*") if path.is_file()]
    assert file.name == f"{source.fingerprint}.json"
    assert json.loads(file.read_text())["mean"] == list(first.mean)
    monkeypatch.setattr(source, "read", lambda indices: pytest.fail("was read again"))
    assert channel_stats(source) == first


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "\x00\xff",
        "[1, 2]",
        '{"mean": [1.0]}',
        '{"mean": [0.5], "std": [0.1]}',
        '{"mean": 3, "std": 4}',
        '{"mean": [NaN, 0, 0], "std": [1, 1, 1]}',
        '{"mean": ["a", 0, 0], "std": [1, 1, 1]}',
    ],
)
def test_damaged_cache_is_computed_again(home: Path, noise: Any, content: str) -> None:
    source = ArraySource("mine", noise(10, 3, 4, 4))
    first = channel_stats(source)
    file = home / "statistics" / f"{source.fingerprint}.json"
    whole = file.read_bytes()
    file.write_text(content, encoding="latin-1")
    assert channel_stats(source) == first
    assert file.read_bytes() == whole


def test_one_changed_digit_is_noticed(home: Path, noise: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = ArraySource("mine", noise(10, 3, 4, 4))
    first = channel_stats(source)
    file = home / "statistics" / f"{source.fingerprint}.json"
    place = file.read_text().index(".") + 3
    content = bytearray(file.read_bytes())
    content[place] = ord("1") if content[place] != ord("1") else ord("2")
    file.write_bytes(content)
    assert channel_stats(source) == first
    assert f"{file} is damaged and is made again" in capsys.readouterr().err


def test_cache_that_cannot_be_written(tmp_path: Path, noise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path / "file" / "home"))
    assert len(channel_stats(ArraySource("mine", noise(2, 3, 4, 4))).mean) == 3


def test_options_have_their_own_statistics(home: Path) -> None:
    assert len(channel_stats(open_source("digits?channels=3&limit=50")).mean) == 3
    whole, part = channel_stats(open_source("digits")), channel_stats(open_source("digits?limit=50"))
    assert len(whole.mean) == 1
    assert whole != part


def test_skipped_images_do_not_count(home: Path, tmp_path: Path, encode: Any) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(encode(np.full((2, 2), 51, np.uint8)))
    (folder / "b.png").write_bytes(b"")
    source = open_source(f"folder:{folder}?on_bad_image=skip")
    assert channel_stats(source).mean == (0.2,)
    (folder / "a.png").unlink()
    home.rename(tmp_path / "old")
    with pytest.raises(DataError, match="no image can be read"):
        channel_stats(source)
