"""Histograms of oriented gradients as a target, against a slow computation."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clustermim.teachers.handcrafted
from clustermim.errors import ConfigError, DataError
from clustermim.targets import HOGTarget
from clustermim.teachers.handcrafted import default_cell, hog
from pictures import pictures


def test_examples() -> None:
    result = doctest.testmod(clustermim.teachers.handcrafted)
    assert result.attempted
    assert not result.failed


def slow_hog(image: Any, patch_size: int, cell: int, bins: int) -> Any:
    """HOG of one image (C, H, W), pixel by pixel in float64: (N, C·cells·bins)."""
    channels, height, width = image.shape
    patches = []
    for top in range(0, height, patch_size):
        for left in range(0, width, patch_size):
            parts = []
            for channel in range(channels):
                for y in range(top, top + patch_size, cell):
                    for x in range(left, left + patch_size, cell):
                        parts.append(slow_cell(image[channel], y, x, cell, bins))
            patches.append(np.concatenate(parts))
    return np.stack(patches)


def slow_cell(plane: Any, top: int, left: int, cell: int, bins: int) -> Any:
    def at(y: int, x: int) -> float:
        y, x = abs(y), abs(x)
        y = 2 * (plane.shape[0] - 1) - y if y >= plane.shape[0] else y
        x = 2 * (plane.shape[1] - 1) - x if x >= plane.shape[1] else x
        return float(plane[y, x])

    histogram = np.zeros(bins)
    for y in range(top, top + cell):
        for x in range(left, left + cell):
            right, down = at(y, x + 1) - at(y, x - 1), at(y + 1, x) - at(y - 1, x)
            degrees = math.degrees(math.atan2(down, right)) % 360 % 180
            histogram[int(degrees // (180 / bins))] += math.sqrt(right**2 + down**2)
    length = np.linalg.norm(histogram)
    return histogram / length if length else histogram


@pytest.mark.parametrize(
    ("channels", "height", "width", "patch_size", "cell"),
    [(3, 32, 48, 16, 8), (1, 8, 12, 4, 4), (5, 8, 8, 4, 2), (2, 4, 6, 2, 1), (1, 6, 3, 3, 3)],
)
def test_hog_against_a_slow_one(channels: int, height: int, width: int, patch_size: int, cell: int) -> None:
    images = pictures(2, channels, height, width)
    values = hog(images, patch_size, cell)
    assert values.shape == (2, height * width // patch_size**2, channels * (patch_size // cell) ** 2 * 9)
    expected = np.stack([slow_hog(image.astype(np.float64), patch_size, cell, 9) for image in images.numpy()])
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-5)


def test_hog_of_smooth_images_against_a_slow_one() -> None:
    images = F.interpolate(pictures(3, 3, 5, 5), (16, 24), mode="bilinear")
    expected = np.stack([slow_hog(image.astype(np.float64), 8, 4, 9) for image in images.numpy()])
    # at the borders differences of equal values are rounding errors that may vote for another bin
    agree = np.isclose(HOGTarget(8, 3)(images).numpy(), expected, atol=1e-5)
    assert agree.mean() > 0.99


@pytest.mark.parametrize("sign", [1, -1])
def test_hog_of_edges(sign: int) -> None:
    """Dark to bright or bright to dark, an edge has one orientation: upright edges fill bin 0, level ones bin 4."""
    ramp = torch.arange(8.0).mul(sign / 10).remainder(1.0)
    upright = ramp.expand(1, 1, 8, 8)
    for image, orientation in ((upright, 0), (upright.mT, 4)):
        values = HOGTarget(8, 1)(image).reshape(4, 9)
        assert torch.equal(values.argmax(dim=1), torch.full((4,), orientation))
        torch.testing.assert_close(values.norm(dim=1), torch.ones(4))


def test_flat_cells_are_zero() -> None:
    assert not HOGTarget(4, 3)(torch.full((2, 3, 8, 8), 0.3)).any()


def test_hog_does_not_depend_on_contrast_or_batch() -> None:
    images, target = pictures(3, 3, 16, 16), HOGTarget(8, 3)
    whole = target(images)
    torch.testing.assert_close(target(images * 0.5 + 0.2), whole, atol=1e-4, rtol=0)
    assert torch.equal(torch.cat([target(image[None]) for image in images]), whole)


def test_sizes_of_hog() -> None:
    assert HOGTarget(16, 3).dim == 108  # as in MaskFeat
    assert HOGTarget(4, 3).dim == 27
    assert [default_cell(patch_size) for patch_size in (3, 6, 32)] == [3, 6, 16]
    target = HOGTarget(4, 1)
    values = target(pictures(1, 1, 8, 8))
    torch.testing.assert_close(target.loss(values + 0.5, values), torch.tensor(0.25))


def test_hog_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="no gradients"):
        HOGTarget(1, 3)
    with pytest.raises(DataError, match="the hog target is for 1-channel images, these have 3"):
        HOGTarget(4, 1)(torch.zeros(1, 3, 8, 8))
