from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Generator, Tensor

from clustermim.data.transforms import (
    TRIES,
    convert_channels,
    cover_box,
    flip,
    normalize,
    random_boxes,
    resize_boxes,
    resize_center_crop,
    shift,
)
from clustermim.errors import DataError


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=seeded(seed))


def draw_boxes(count: int, height: int, width: int, *limits: tuple[float, float], seed: int = 0) -> Tensor:
    draws = torch.rand((4, count, TRIES), generator=seeded(seed), dtype=torch.float64)
    return random_boxes(draws, height, width, *limits)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Torch's own, in double precision: in single, its weights are off by up to 1e-5."""
    return F.interpolate(images.double(), size=size, mode="bicubic", antialias=True).clamp(0, 1)


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    size=st.tuples(st.integers(1, 50), st.integers(2, 50)),  # torch errs when the result is one pixel wide
    channels=st.sampled_from([1, 3, 5]),
    seed=st.integers(0, 1000),
)
def test_resized_boxes_are_torch_s(height: int, width: int, size: tuple[int, int], channels: int, seed: int) -> None:
    images = draw(3, channels, height, width, seed=seed)
    boxes = draw_boxes(3, height, width, seed=seed)
    crops = resize_boxes(images, boxes, size)
    for image, crop, (top, left, tall, wide) in zip(images, crops, boxes.int().tolist(), strict=True):
        assert 1 <= tall <= height - top
        assert 1 <= wide <= width - left
        expected = resize(image[None, :, top : top + tall, left : left + wide], size)[0]
        assert torch.allclose(crop.double(), expected, atol=1e-5, rtol=0)
    assert crops.dtype == torch.float32
    assert crops.shape == (3, channels, *size)


def test_boxes_have_the_areas_and_aspects_asked_for() -> None:
    boxes = draw_boxes(4000, 200, 300)
    top, left, height, width = boxes.unbind(1)
    area, aspect = height * width / 60000, width / height
    assert area.min() > 0.19
    assert area.max() <= 1
    assert aspect.min() > 0.74
    assert aspect.max() < 1.35
    assert ((top + height) <= 200).all()
    assert ((left + width) <= 300).all()
    assert top.min() == left.min() == 0
    assert (boxes == boxes.round()).all()
    boxes = draw_boxes(4000, 200, 200, (0.2, 0.6))  # where every draw fits
    assert (boxes[:, 3] / boxes[:, 2]).log().mean().abs() < 0.01
    assert (boxes[:, 2] * boxes[:, 3]).mean() / 40000 == pytest.approx(0.4, abs=0.01)


def test_boxes_of_a_long_image() -> None:
    boxes = draw_boxes(50, 4, 100, (0.9, 1.0))
    assert (boxes[:, 2] == 4).all()
    assert (boxes[:, 3] == 5).all()  # the widest aspect, 4/3, of four rows
    assert len(boxes[:, 1].unique()) > 10


@pytest.mark.parametrize(("kind", "white"), [(torch.uint8, 255), (torch.uint16, 65535)])
def test_resized_boxes_keep_whole_numbers(kind: torch.dtype, white: int) -> None:
    images = (draw(4, 3, 20, 30) * white).to(kind)
    boxes = draw_boxes(4, 20, 30)
    whole = resize_boxes(images, boxes, (9, 12))
    exact = resize_boxes(images.double() / white, boxes, (9, 12))
    assert whole.dtype == kind
    assert (whole.double() - exact * white).abs().max() <= 0.52


def test_constant_images_stay_constant() -> None:
    images = torch.full((2, 3, 17, 23), 0.3)
    assert torch.allclose(resize_boxes(images, draw_boxes(2, 17, 23), (40, 8)), torch.tensor(0.3))
    assert torch.allclose(resize_center_crop(images, (9, 40)), torch.tensor(0.3))


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_resize_center_crop_is_pillow_s(height: int, width: int, size: tuple[int, int]) -> None:
    image = draw(height, width)
    top, left, tall, wide = cover_box(height, width, size)
    box = (left, top, min(left + wide, width), min(top + tall, height))
    expected = Image.fromarray(image.numpy()).resize(size[::-1], Image.Resampling.BICUBIC, box=box)
    found = resize_center_crop(image[None, None], size)[0, 0]
    assert np.allclose(found, np.asarray(expected).clip(0, 1), atol=1e-5, rtol=0)


def test_resize_center_crop_is_resize_then_crop() -> None:
    images = draw(2, 3, 40, 80)
    expected = resize(images, (20, 40))[..., 5:35]  # the shorter side to 20, then the middle 30 columns
    assert torch.allclose(resize_center_crop(images, (20, 30)).double(), expected, atol=1e-5)
    assert resize_center_crop(images, (40, 80)) is images
    whole = (images * 255).to(torch.uint8)
    assert resize_center_crop(whole, (20, 30)).dtype == torch.uint8


def test_convert_channels() -> None:
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], dtype=torch.uint8)
    images = colours[:, :, None, None]
    grey = convert_channels(images, 1)
    assert grey.flatten().tolist() == [76, 150, 29, 255]
    assert convert_channels(images / 255, 1).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114, 1])
    assert convert_channels(grey, 3).equal(torch.cat([grey] * 3, dim=1))
    assert convert_channels(images, 3) is images
    with pytest.raises(DataError, match="5 channels"):
        convert_channels(draw(1, 5, 2, 2), 3)


KINDS = [torch.uint8, torch.uint16, torch.float32]


@pytest.mark.parametrize("kind", KINDS)
def test_flip(kind: torch.dtype) -> None:
    images = (draw(4, 2, 3, 5) * 255).to(kind)
    flipped = flip(images, torch.tensor([True, False, False, True]))
    assert flipped.dtype == kind
    for place, mirrored in enumerate((True, False, False, True)):
        wanted = images[place].numpy()[..., ::-1] if mirrored else images[place].numpy()
        assert np.array_equal(flipped[place].numpy(), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_shift(kind: torch.dtype) -> None:
    images = (draw(25, 3, 6, 9) * 255).to(kind)
    offsets = torch.cartesian_prod(torch.arange(-2, 3), torch.arange(-2, 3))  # (25, 2)
    moved = shift(images, offsets)
    assert moved.dtype == kind
    padded = F.pad(images.float(), (2, 2, 2, 2), mode="reflect").to(kind)
    for image, result, (row, column) in zip(padded, moved, offsets.tolist(), strict=True):
        assert torch.equal(image[:, row + 2 : row + 8, column + 2 : column + 11], result)
    with pytest.raises(DataError, match="6×9 pixels cannot be moved by 6"):
        shift(images[:1], torch.tensor([[6, 0]]))


def test_normalize() -> None:
    images = draw(5, 3, 4, 6)
    mean, std = images.mean(dim=(0, 2, 3)), images.std(dim=(0, 2, 3), correction=0)
    result = normalize(images, mean.tolist(), std.tolist())
    assert torch.allclose(result.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(result.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5)
    assert normalize(torch.full((1, 1, 2, 2), 0.25), [0.25], [0.0]).abs().max() == 0
