"""Masks: of textures, of a folder beside one of images, and through views."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clustermim.data import open_source
from clustermim.data.source import Masks, Source
from clustermim.data.transforms import resize_center_crop, resize_masks
from clustermim.errors import DataError
from clustermim.pretraining import pretrain


def masks_of(source: Source) -> Masks:
    assert source.masks is not None
    return source.masks


@pytest.fixture
def folder(tmp_path: Path, noise: Callable[..., Any]) -> Path:
    """Six images in two classes, and a mask of each: half of them grey, half with a palette."""
    for place in range(6):
        name = f"{'ab'[place % 2]}/{place}"
        for kind in ("images", "masks"):
            (tmp_path / kind / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(10, 12, 3, seed=place)).save(tmp_path / "images" / f"{name}.jpg")
        mask = Image.fromarray(noise(10, 12, seed=place) % 5)
        if place < 3:
            mask.putpalette(noise(256 * 3, seed=place + 9).tolist())
        mask.save(tmp_path / "masks" / f"{name}.png")
    return tmp_path


def spec_of(folder: Path, more: str = "") -> str:
    return f"folder:{folder / 'images'}?masks={folder / 'masks'}{more}"


def true_mask(noise: Callable[..., Any], place: int) -> Any:
    return noise(10, 12, seed=place) % 5


def test_a_folder_of_masks(folder: Path, noise: Callable[..., Any]) -> None:
    source = open_source(spec_of(folder))
    found = masks_of(source).read([4, 0, 3])
    assert found.dtype == torch.int16
    order = [0, 2, 4, 1, 3, 5]  # a before b
    for one, row in zip(found, (4, 0, 3), strict=True):
        assert np.array_equal(one.numpy(), true_mask(noise, order[row]))
    assert masks_of(source).read([-1]).equal(masks_of(source).read([5]))
    assert masks_of(source).read([]).shape == (0, 10, 12)
    assert masks_of(source).class_names == ()
    assert open_source(f"folder:{folder / 'images'}").masks is None
    assert pretrain(spec_of(folder, "&size=8"), patch_size=4, epochs=1, batch_size=4, device="cpu").history


def test_255_is_no_class(folder: Path) -> None:
    values = np.array([[0, 255] * 6] * 10, np.uint8)
    Image.fromarray(values).save(folder / "masks" / "a" / "0.png")
    Image.fromarray(values > 0).save(folder / "masks" / "a" / "2.png")
    found = masks_of(open_source(spec_of(folder))).read([0, 1])
    assert found[0].unique().tolist() == [-1, 0]
    assert found[1].unique().tolist() == [0, 1]  # of one bit


def test_views_see_their_part(folder: Path) -> None:
    """Of a subset the same masks as of the whole, and resized as the images are."""
    whole, part = open_source(spec_of(folder)), open_source(spec_of(folder, "&limit=3"))
    rows = part.positions.tolist()  # type: ignore[attr-defined]
    assert masks_of(part).read([0, 1, 2]).equal(masks_of(whole).read(rows))
    small = open_source(part, size=5)
    assert masks_of(small).read([1]).equal(resize_masks(masks_of(whole).read([rows[1]]), (5, 5)))
    assert small.read([1]).images.shape[2:] == masks_of(small).read([1]).shape[1:]


def test_sizes_are_changed_as_those_of_images() -> None:
    """A mask that is also an image keeps its place: blocks of one class shrink and grow to the same blocks."""
    blocks = torch.arange(12).view(1, 3, 4)
    masks = blocks.repeat_interleave(8, 1).repeat_interleave(8, 2)  # (1, 24, 32)
    assert resize_masks(masks, (24, 32)) is masks
    for size in ((12, 16), (48, 64), (3, 4)):
        factor = size[0] / 3
        expected = blocks.repeat_interleave(int(factor), 1).repeat_interleave(int(factor), 2)
        assert resize_masks(masks, size).equal(expected)
        image = resize_center_crop(masks[:, None] / 11, size)[:, 0] * 11
        assert float((image - expected).abs().median()) < 0.4
    square = resize_masks(masks, (24, 24))  # the centre: 4 columns are cut on each side
    assert square.equal(masks[:, :, 4:28])


def test_masks_of_textures() -> None:
    source = open_source("textures:?images=5&grid=2x3&patch=4")
    found = masks_of(source).read([3, 1])
    ids = torch.from_numpy(source.patch_ids([3, 1])).view(2, 2, 3)  # type: ignore[attr-defined]
    assert found[:, ::4, ::4].equal(ids.to(torch.int16))
    assert found[:, 3::4, 3::4].equal(found[:, ::4, ::4])
    assert len(masks_of(source).class_names) == len(source.prototypes)  # type: ignore[attr-defined]


def test_the_fingerprint_is_of_what_masks_hold(folder: Path) -> None:
    first = open_source(spec_of(folder)).fingerprint
    assert first != open_source(f"folder:{folder / 'images'}").fingerprint
    os.rename(folder / "masks", folder / "others")
    moved = open_source(f"folder:{folder / 'images'}?masks={folder / 'others'}")
    assert moved.fingerprint == first
    path = folder / "others" / "a" / "0.png"
    Image.fromarray(np.asarray(Image.open(path)) * 0).save(path)
    assert open_source(moved.spec).fingerprint != first


def test_a_turned_photograph_has_a_mask_as_it_is_seen(tmp_path: Path, noise: Callable[..., Any]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    Image.fromarray(noise(8, 12, 3)).save(tmp_path / "images" / "0.jpg", exif=exif)
    Image.fromarray(noise(12, 8) % 3).save(tmp_path / "masks" / "0.png")
    source = open_source(spec_of(tmp_path))
    assert source.shape == (3, 12, 8)
    assert masks_of(source).read([0]).shape == (1, 12, 8)


def test_bad_masks_are_listed_in_one_line(folder: Path, noise: Callable[..., Any]) -> None:
    masks = folder / "masks"
    (masks / "a" / "0.png").unlink()
    Image.fromarray(noise(9, 12) % 5).save(masks / "a" / "2.png")
    Image.fromarray(noise(10, 12, 3)).save(masks / "a" / "4.png")
    (masks / "b" / "1.png").write_bytes(b"nothing")
    Image.fromarray(noise(10, 12).astype(np.uint16) * 3).save(masks / "b" / "3.png")
    with pytest.raises(DataError) as found:
        open_source(spec_of(folder))
    said = str(found.value)
    assert "5 of 6 masks cannot be used" in said
    assert f"{masks / 'a' / '0.png'} is not there" in said
    assert f"{masks / 'a' / '2.png'} has 9×12 pixels and its image 10×12" in said
    assert f"{masks / 'a' / '4.png'} is a PNG of the mode RGB" in said
    assert f"{masks / 'b' / '1.png'} cannot be read as a PNG" in said
    assert f"{masks / 'b' / '3.png'} is a PNG of the mode I;16" in said
    assert "5.png" not in said
    assert "\n" not in said


def test_other_faults(folder: Path) -> None:
    with pytest.raises(DataError, match="is not there, and masks= names it"):
        open_source(f"folder:{folder / 'images'}?masks={folder / 'nowhere'}")
    with pytest.raises(DataError, match="is not a folder"):
        open_source(f"folder:{folder / 'images'}?masks={folder / 'masks' / 'a' / '0.png'}")
    with pytest.raises(DataError, match="digits has no option 'masks'"):
        open_source("digits?masks=x")
    source, path = open_source(spec_of(folder)), folder / "masks" / "a" / "0.png"
    path.write_bytes(path.read_bytes()[:60])  # its header is whole
    with pytest.raises(DataError, match=r"0\.png: damaged or of an unknown kind"):
        masks_of(source).read([0])
    path.unlink()
    with pytest.raises(DataError, match=r"0\.png: No such file"):
        masks_of(source).read([0])
