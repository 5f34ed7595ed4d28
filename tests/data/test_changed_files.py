"""Files that were changed in place, at equal size, are noticed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from clustermim.cli import main
from clustermim.data import channel_stats, open_source
from clustermim.data import folder as folders
from clustermim.data.cache import verify_files
from clustermim.data.encoded import evenly_spaced
from clustermim.studies import running

COUNT = 300  # of which 256 are sampled in a large folder
NOT_SAMPLED = min(set(range(COUNT)) - set(evenly_spaced(COUNT)))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (COUNT, 4, 4, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number:03}.bmp")
    return folder


@pytest.fixture
def images(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "images"))


def change(path: Path, same_date: bool = False) -> None:
    """Flip one bit of a pixel."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    date = before.st_mtime_ns + (0 if same_date else 1)
    os.utime(path, ns=(date, date))


def test_the_fingerprint_of_a_small_folder_is_of_all_files(images: Path) -> None:
    seen = {open_source(f"folder:{images}").fingerprint}
    for number in range(0, COUNT, 7):
        change(images / f"{number:03}.bmp", same_date=True)
        seen.add(open_source(f"folder:{images}").fingerprint)
    assert len(seen) == 1 + len(range(0, COUNT, 7))


def test_a_large_folder_is_hashed_whole_when_it_is_checked(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "SMALL", 0)
    spec = f"folder:{images}"
    first, stats = open_source(spec), channel_stats(open_source(spec))
    first.readable(range(COUNT))
    copy = open_source(f"folder:{shutil.copytree(images, tmp_path / 'copy', copy_function=shutil.copyfile)}?limit=300")
    copy.readable(range(COUNT))
    assert copy.contents() == first.contents() != ""  # whatever the dates
    assert copy.dates != first.dates
    assert copy.describe()["contents"] == first.contents()
    change(images / f"{NOT_SAMPLED:03}.bmp")
    second = open_source(spec)
    assert second.fingerprint == first.fingerprint
    second.readable(range(COUNT))
    assert second.contents() != first.contents()
    assert channel_stats(second) != stats  # what is kept of the old ones is not used
    change(images / f"{NOT_SAMPLED:03}.bmp", same_date=True)
    third = open_source(spec)
    third.readable(range(COUNT))
    assert third.contents() == second.contents()  # nothing tells
    with verify_files():
        assert open_source(spec).contents() == first.contents()
        assert channel_stats(open_source(spec)) == stats


def test_a_training_goes_on_with_the_same_files_only(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folders, "SMALL", 0)
    words = ["pretrain", "--data", f"folder:{images}", "--out", str(tmp_path / "run"), "--target", "pixels"]
    words += ["--patch-size", "2", "--batch-size", "150", "--epochs", "2", "--device", "cpu"]
    with pytest.raises(SystemExit):
        main([*words, "--stop-after", "1"])
    change(images / f"{NOT_SAMPLED:03}.bmp")
    assert main([*words, "--resume"]) == 2
    assert "the content of the data is not what" in capsys.readouterr().err
    change(images / f"{NOT_SAMPLED:03}.bmp", same_date=True)  # back again, and the date does not tell
    assert main([*words, "--resume", "--verify"]) == 0


def test_a_study_verifies_on_request(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "SMALL", 0)
    running.fingerprints.cache_clear()
    assert running.fingerprints(f"folder:{images}")["contents"] == ""
    running.fingerprints.cache_clear()
    with verify_files():
        assert len(running.fingerprints(f"folder:{images}")["contents"]) == 16
    running.fingerprints.cache_clear()
