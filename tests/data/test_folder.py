from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clustermim.data import open_source
from clustermim.data.encoded import EncodedSource
from clustermim.errors import DataError


@pytest.fixture
def classes(tmp_path: Path, encode: Any, noise: Any) -> Path:
    """Three images 6×8 in each of two classes, and things that are no images."""
    root = tmp_path / "images"
    for k, name in enumerate(["cat", "dog"]):
        (root / name / "deep").mkdir(parents=True)
        for i, place in enumerate(["1.png", "deep/0.PNG", "3.bmp"]):
            kind = "BMP" if place.endswith("bmp") else "PNG"
            (root / name / place).write_bytes(encode(noise(6, 8, 3, seed=10 * k + i), kind))
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "cat" / ".hidden.png").write_text("no image")
    (root / ".cache").mkdir()
    (root / ".cache" / "a.png").write_text("no image")
    (root / "empty").mkdir()
    return root


def names_of(source: Any, root: Path) -> list[str]:
    return [Path(name).relative_to(root).as_posix() for name in map(source.name, range(len(source)))]


def test_classes(classes: Path, noise: Any) -> None:
    source: Any = open_source(f"folder:{classes}")
    assert names_of(source, classes) == [
        f"{name}/{file}" for name in ("cat", "dog") for file in ("1.png", "3.bmp", "deep/0.PNG")
    ]
    assert (source.shape, source.class_names) == ((3, 6, 8), ("cat", "dog"))
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    batch = source.read([4, 0])
    assert np.array_equal(batch.images[0], noise(6, 8, 3, seed=12).transpose(2, 0, 1))
    assert np.array_equal(batch.images[1], noise(6, 8, 3, seed=0).transpose(2, 0, 1))
    assert batch.labels.tolist() == [1, 0]


def test_files_of_other_kinds_are_counted(classes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.gif", "b.GIF", "README"):
        (classes / "dog" / name).write_text("not used")
    assert len(open_source(f"folder:{classes}")) == 6
    assert f"{classes}: files of other kinds are not used (2 .gif, 1 without a suffix, 1 .txt)" in (
        capsys.readouterr().err
    )
    open_source(f"folder:{classes}")
    assert capsys.readouterr().err == ""  # said once


def test_flat_folder_has_no_labels(classes: Path) -> None:
    shutil.rmtree(classes / "cat" / "deep")
    source = open_source(f"folder:{classes / 'cat'}")
    assert (len(source), source.labels, source.class_names) == (2, None, ())
    assert source.read([0]).labels is None
    assert source[1][1] is None


def test_two_openings_give_the_same(classes: Path) -> None:
    first, second = open_source(f"folder:{classes}"), open_source(f"folder:{classes}")
    assert first.read(range(6)).images.equal(second.read(range(6)).images)
    assert first.fingerprint == second.fingerprint


def test_fingerprint(classes: Path, tmp_path: Path, encode: Any, noise: Any) -> None:
    spec = f"folder:{classes}"
    seen = [open_source(spec).fingerprint]
    moved = tmp_path / "elsewhere"
    shutil.copytree(classes, moved)
    assert open_source(f"folder:{moved}").fingerprint == seen[0]
    seen += [open_source(spec + option).fingerprint for option in ("?size=4", "?size=4x5", "?limit=3", "?channels=1")]
    assert open_source(f"folder:{moved}?limit=3").fingerprint == seen[3]
    pixels = noise(6, 8, 3, seed=2)
    pixels[3, 4, 1] ^= 1
    (classes / "cat" / "3.bmp").write_bytes(encode(pixels, "BMP"))  # a file of the same length
    seen.append(open_source(spec).fingerprint)
    (classes / "cat" / "1.png").rename(classes / "cat" / "2.png")
    seen.append(open_source(spec).fingerprint)
    (classes / "cat").rename(classes / "lion")
    seen.append(open_source(spec).fingerprint)
    assert len(set(seen)) == len(seen)


def test_mixed_sizes(classes: Path, encode: Any, noise: Any) -> None:
    (classes / "dog" / "2.png").write_bytes(encode(noise(7, 9, 3)))
    source = open_source(f"folder:{classes}")
    with pytest.raises(DataError, match=r"dog/2\.png: 7×9 pixels .* 6×8; add \?size=6"):
        list(source.batches(3))
    source = open_source(f"folder:{classes}?size=5x7")
    assert (source.shape, source.read(range(7)).images.shape) == ((3, 5, 7), (7, 3, 5, 7))


def test_mixed_colour_and_grey(classes: Path, encode: Any, noise: Any) -> None:
    grey = noise(6, 8)
    (classes / "cat" / "0.png").write_bytes(encode(grey))
    source = open_source(f"folder:{classes}")
    assert source.shape == (3, 6, 8)
    assert np.array_equal(source[0][0], np.stack([grey] * 3))
    assert open_source(f"folder:{classes}?channels=1").read(range(7)).images.shape == (7, 1, 6, 8)


def test_grey_folder(tmp_path: Path, encode: Any, noise: Any) -> None:
    for i in range(300):
        (tmp_path / f"{i:03}.png").write_bytes(encode(noise(2, 3)))
    spec = f"folder:{tmp_path}"
    assert open_source(spec).shape == (1, 2, 3)
    assert open_source(spec + "?channels=3").shape == (3, 2, 3)
    sample = {open_source(spec)[i][0].shape for i in (0, 299)}
    assert sample == {(1, 2, 3)}
    # A picture in colour that the sample missed is told, not turned grey.
    from clustermim.data.encoded import evenly_spaced

    missed = next(i for i in range(300) if i not in evenly_spaced(300))
    (tmp_path / f"{missed:03}.png").write_bytes(encode(noise(2, 3, 3)))
    with pytest.raises(DataError, match=rf"{missed:03}\.png: in colour among grey images; add channels=3"):
        open_source(spec).read([missed])
    assert open_source(spec + "?channels=1").read([missed]).images.shape == (1, 1, 2, 3)


def test_bad_image(classes: Path) -> None:
    bad = classes / "dog" / "1.png"
    bad.write_bytes(bad.read_bytes()[:70])
    with pytest.raises(DataError, match=r"dog/1\.png"):
        list(open_source(f"folder:{classes}").batches(6))
    source = open_source(f"folder:{classes}?on_bad_image=skip")
    batches = list(source.batches(2))
    assert [batch.indices.tolist() for batch in batches] == [[0, 1], [2], [4, 5]]
    labels = [batch.labels.tolist() for batch in batches if batch.labels is not None]
    assert labels == [[0, 0], [0], [1, 1]]
    assert list(source.skipped) == [str(bad)]
    assert str(bad) not in source.skipped[str(bad)]
    with pytest.raises(DataError, match="image 3 cannot be read"):
        source[3]


def test_skipping_with_a_limit(classes: Path) -> None:
    (classes / "dog" / "1.png").write_bytes(b"")
    source: Any = open_source(f"folder:{classes}?on_bad_image=skip&limit=5")
    batch = source.read(range(5))
    kept = source.positions[batch.indices.numpy()]
    assert kept.tolist() == [i for i in source.positions.tolist() if i != 3]
    assert batch.labels.tolist() == [int(i > 2) for i in kept]
    assert batch.images.equal(open_source(f"folder:{classes}?on_bad_image=skip").read(kept).images)


def test_first_image_bad(classes: Path) -> None:
    (classes / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"cat/1\.png: the file is empty"):
        open_source(f"folder:{classes}")
    source = open_source(f"folder:{classes}?on_bad_image=skip")
    assert source.shape == (3, 6, 8)
    assert len(source.read([0]).images) == 0


def test_all_bad_images_are_named_when_the_first_is_one(classes: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        (classes / name).write_bytes(b"")
    message = r"2 of 6 images cannot be used: .*cat/1\.png: the file is empty; .*dog/1\.png.*\?on_bad_image=skip"
    with pytest.raises(DataError, match=message):
        open_source(f"folder:{classes}")
    with pytest.raises(DataError, match=message.replace(r"\?on", "&on")):  # of a known number of channels too
        open_source(f"folder:{classes}?channels=3")


def test_a_sample_that_meets_a_bad_image_names_all(classes: Path) -> None:
    for name in ("cat/3.bmp", "dog/1.png"):
        (classes / name).write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2 of 6 images cannot be used: .*cat/3\.bmp.*dog/1\.png"):
        open_source(f"folder:{classes}")


def test_all_bad(tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_text("no image")
    with pytest.raises(DataError, match=r"none of its 2 images can be read; the last: .*b\.jpg"):
        open_source(f"folder:{tmp_path}?on_bad_image=skip")


def test_vanished_file(classes: Path) -> None:
    source = open_source(f"folder:{classes}")
    (classes / "cat" / "3.bmp").unlink()
    with pytest.raises(DataError, match=r"cat/3\.bmp: No such file"):
        source.read([1])


def test_no_folder_no_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not there"):
        open_source(f"folder:{tmp_path}/nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is not a folder"):
        open_source(f"folder:{tmp_path}/file")
    with pytest.raises(DataError, match=r"no images in .*\.jpg"):
        open_source(f"folder:{tmp_path}")


def test_images_beside_classes(classes: Path) -> None:
    shutil.copy(classes / "cat" / "1.png", classes / "stray.png")
    with pytest.raises(DataError, match=r"1 images such as stray\.png lie beside the sub-folder cat"):
        open_source(f"folder:{classes}")


def test_splits_are_not_classes(classes: Path, tmp_path: Path) -> None:
    shutil.copytree(classes, tmp_path / "set" / "train")
    shutil.copytree(classes, tmp_path / "set" / "val")
    with pytest.raises(DataError, match=r"did you mean folder:.*set/train\?"):
        open_source(f"folder:{tmp_path}/set")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links(classes: Path, tmp_path: Path) -> None:
    before = open_source(f"folder:{classes}").fingerprint
    (classes / "cat" / "loop").symlink_to(classes)
    (classes / "dog" / "self").symlink_to(classes / "dog")
    (classes / "broken.png").symlink_to(tmp_path / "nowhere.png")
    assert open_source(f"folder:{classes}").fingerprint == before
    link = tmp_path / "link"
    link.symlink_to(classes)
    assert open_source(f"folder:{link}").fingerprint == before


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
def test_odd_names(tmp_path: Path, encode: Any, noise: Any) -> None:
    root = tmp_path / "a b&c=%20:#é"
    root.mkdir()
    for name in ["1 ö.png", "2'\"\n.png", "3?.png", "4*[x].PNG"]:
        (root / name).write_bytes(encode(noise(2, 3)))
    try:
        with open(os.fsencode(root) + b"/5\xff.png", "wb") as file:
            file.write(b"no image")
        count = 5
    except OSError:  # a file system that takes text only
        count = 4
    source = open_source(f"folder:{root}?on_bad_image=skip")
    assert len(source) == count
    assert len(source.read(range(count)).images) == 4
    for name in source.skipped:
        name.encode()  # can be printed


def test_what_the_disk_refused_once_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path / "home"))
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "photos" / f"{name}.png")
    source = open_source(f"folder:{tmp_path / 'photos'}?on_bad_image=skip")
    assert isinstance(source, EncodedSource)
    fetcher = source.fetcher

    def refuse(row: int) -> bytes:
        raise OSError(5, "Input/output error")

    source.fetcher = lambda rows: refuse
    assert source.readable(range(2)).tolist() == [False, False]
    source.fetcher = fetcher
    assert source.readable(range(2)).tolist() == [True, True]
    source.fetcher = lambda rows: refuse
    assert source.readable(range(2)).tolist() == [True, True]  # what was found is kept
