"""Patches, grids and positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clustermim.errors import ConfigError, DataError
from clustermim.patches import grid_size, patchify, sincos_positions, unpatchify


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_there_and_back(batch: int, channels: int, rows: int, columns: int, patch_size: int) -> None:
    images = torch.rand(batch, channels, rows * patch_size, columns * patch_size)
    patches = patchify(images, patch_size)
    assert patches.shape == (batch, rows * columns, patch_size**2 * channels)
    assert torch.equal(unpatchify(patches, (rows, columns), channels), images)


def test_order_inside_and_across_patches() -> None:
    images = torch.arange(2 * 4 * 6).reshape(1, 2, 4, 6)
    patches = patchify(images, 2)
    # the patch in row 1, column 2; its pixels row by row, channels together
    expected = [[images[0, c, 2 + y, 4 + x] for c in range(2)] for y in range(2) for x in range(2)]
    assert patches[0, 1 * 3 + 2].tolist() == torch.tensor(expected).flatten().tolist()


@pytest.mark.parametrize(("height", "width", "patch_size"), [(30, 32, 4), (32, 30, 4), (32, 32, 0), (0, 32, 4)])
def test_images_that_do_not_divide(height: int, width: int, patch_size: int) -> None:
    with pytest.raises(DataError, match=f"{height}×{width} pixels do not divide into patches of {patch_size}"):
        grid_size(height, width, patch_size)


def test_patches_that_form_no_image() -> None:
    with pytest.raises(DataError, match="5 patches of 12 values do not form a 2×2 grid of 3-channel patches"):
        unpatchify(torch.zeros(1, 5, 12), (2, 2), 3)
    with pytest.raises(DataError, match="do not form"):
        unpatchify(torch.zeros(1, 4, 13), (2, 2), 3)


def test_positions_by_their_formula() -> None:
    positions = sincos_positions((2, 3), 8)
    assert positions.shape == (6, 8)
    row, column = 1, 2
    wanted = [torch.tensor(float(p)) / 10000 ** (i / 2) for p in (column, row) for i in range(2)]
    x, y = torch.stack(wanted[:2]), torch.stack(wanted[2:])
    torch.testing.assert_close(positions[row * 3 + column], torch.cat([x.sin(), x.cos(), y.sin(), y.cos()]))
    assert len(positions.unique(dim=0)) == 6
    with pytest.raises(ConfigError, match="divisible by 4, not 6"):
        sincos_positions((2, 2), 6)
