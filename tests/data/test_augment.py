"""Random views: what an image looks like in an epoch depends on seed, epoch and image alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator

from clustermim.data import Source, from_arrays, open_source, to_float
from clustermim.data.augment import Augment, random_view, read_augmented
from clustermim.data.encoded import EncodedSource
from clustermim.data.randomness import ImageRandom
from clustermim.data.transforms import TRIES, random_box

COUNT = 12


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Photographs of several sizes and kinds, one of them turned by its EXIF orientation."""
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        small = generator.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((80 + 9 * number, 150 - 5 * number), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 3 else 1
        image.save(tmp_path / f"{number:02d}.{'png' if number == 5 else 'jpg'}", exif=exif)
    return f"folder:{tmp_path}?size=32"


def arrays(dtype: Any = np.uint8, channels: int = 3) -> Source:
    white = np.iinfo(dtype).max
    images = np.random.default_rng(1).integers(0, white, (COUNT, channels, 16, 24), dtype=dtype)
    return from_arrays(images, channels="first")


def whole(source: Source, augment: Augment, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    return read_augmented(source, range(COUNT), augment, seed, epoch).images


@pytest.mark.parametrize("augment", get_args(Augment))
@pytest.mark.parametrize("kind", ["folder", "arrays", "part"])
def test_a_view_depends_on_seed_epoch_and_image_alone(folder: str, kind: str, augment: Augment) -> None:
    source = arrays() if kind == "arrays" else open_source(folder, limit=COUNT if kind == "part" else None)
    views = whole(source, augment)
    for rows in ([7], [3, 7, 1], list(range(COUNT))[::-1]):
        assert torch.equal(read_augmented(source, rows, augment, 0, 0).images, views[rows])
    assert views.shape == (COUNT, *source.shape)
    assert views.dtype == torch.uint8
    others = whole(source, augment, seed=1), whole(source, augment, epoch=1)
    assert all(torch.equal(views, other) == (augment == "none") for other in others)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_change_nothing(folder: str, workers: int) -> None:
    source = open_source(folder)
    expected = whole(source, "crop")
    assert isinstance(source, EncodedSource)
    source.workers = workers
    assert torch.equal(whole(source, "crop"), expected)


def test_crops_are_boxes_of_the_stored_image(folder: str, tmp_path: Path) -> None:
    """Not of one that was shrunk and cropped before: detail and borders are there."""
    source, numbers = open_source(folder), ImageRandom(0, 0, np.arange(COUNT))(1 + 4 * TRIES)
    crops = source.read_crops(range(COUNT), ImageRandom(0, 0, np.arange(COUNT))).images
    for row, path in enumerate(sorted(tmp_path.glob("*.*g"))):
        image = Image.open(path).convert("RGB")
        image = image.transpose(Image.Transpose.ROTATE_270) if row == 3 else image
        draws = numbers[row, 1:].view(4, TRIES).tolist()
        top, left, tall, wide = random_box(draws, image.height, image.width)
        box = image.crop((left, top, left + wide, top + tall)).resize((32, 32), Image.Resampling.BICUBIC)
        box = box.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if numbers[row, 0] < 0.5 else box
        difference = np.abs(np.asarray(box).transpose(2, 0, 1).astype(int) - crops[row].numpy())
        assert difference.mean() < 6  # at a lower resolution, where that is enough, boxes have whole pixels of that


@pytest.mark.parametrize("augment", ["crop", "pad-crop"])
@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 1), (np.uint8, 13), (np.uint16, 2)])
def test_other_channels_and_depths(dtype: Any, channels: int, augment: Augment) -> None:
    source = arrays(dtype, channels)
    views = whole(source, augment)
    assert views.shape == (COUNT, channels, 16, 24)
    assert views.numpy().dtype == dtype
    assert to_float(views).max() <= 1
    assert to_float(views).std() > 0.1


def test_image_numbers_are_uniform_and_unrelated() -> None:
    numbers = ImageRandom(0, 0, np.arange(2000))(50)
    assert numbers.shape == (2000, 50)
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    histogram = torch.histc(numbers, 20, 0, 1)
    assert ((histogram - 5000).abs() < 5 * 5000**0.5).all()
    correlation = torch.corrcoef(numbers.T) - torch.eye(50)
    assert correlation.abs().max() < 0.12  # of 1,225 pairs over 2,000 images; 1/√2000 = 0.022
    assert torch.corrcoef(numbers[:50]).sub(torch.eye(50)).abs().max() < 0.7
    for other in (ImageRandom(1, 0, np.arange(2000)), ImageRandom(0, 1, np.arange(2000))):
        assert abs(torch.corrcoef(torch.stack([numbers.flatten(), other(50).flatten()]))[0, 1]) < 0.02
    split = ImageRandom(0, 0, np.arange(2000))
    assert torch.equal(torch.cat([split(20), split(30)], 1), numbers)
    streams = [ImageRandom(0, 0, np.arange(3), stream=stream)(4) for stream in (0, 1)]
    assert not torch.equal(*streams)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_random_view_is_a_crop_in_another_light(channels: int) -> None:
    images = torch.randint(256, (6, channels, 8, 12), dtype=torch.uint8, generator=Generator().manual_seed(0))
    kept = images.clone()
    view = random_view(images, Generator().manual_seed(1))
    assert torch.equal(images, kept)
    assert view.shape == images.shape
    assert view.dtype == torch.float32
    assert 0 <= view.min() <= view.max() <= 1
    assert torch.equal(view, random_view(images, Generator().manual_seed(1)))
    assert not torch.allclose(view, random_view(images, Generator().manual_seed(2)))
