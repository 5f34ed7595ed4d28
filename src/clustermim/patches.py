"""Images to patches and back, the patch grid, and its fixed sin-cos positions; any H×W, any channel count."""

from __future__ import annotations

import torch
from torch import Tensor

from clustermim.errors import ConfigError, DataError, UserError

DEFAULT_PATCH_SIZE = 4  # where neither the user nor a tokenizer has chosen one


def grid_size(height: int, width: int, patch_size: int) -> tuple[int, int]:
    """(rows, columns) of the patch grid of an H×W image."""
    if patch_size < 1 or height % patch_size or width % patch_size or not height or not width:
        fitting = max(1, min(height, width) // max(1, patch_size)) * max(1, patch_size)  # the largest side that works
        raise DataError(
            f"images of {height}×{width} pixels do not divide into patches of {patch_size}: "
            f"choose another --patch-size, or add ?size={fitting} to the data spec"
        )
    return height // patch_size, width // patch_size


def check_channels(images: Tensor, channels: int, who: str, error: type[UserError] = DataError) -> None:
    """Refuse images (B, C, H, W) of another number of channels; `who` begins the message."""
    if (found := images.shape[1]) != channels:
        raise error(f"{who} {channels}-channel images, these have {found}: add ?channels={channels} to the data spec")


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Images (B, C, H, W) to patches (B, N, p·p·C), row-major over the grid, channel last inside a patch.

    >>> patchify(torch.zeros(2, 3, 32, 48), 16).shape
    torch.Size([2, 6, 768])
    """
    batch, channels, height, width = images.shape
    rows, columns = grid_size(height, width, patch_size)
    x = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    x = x.permute(0, 2, 4, 3, 5, 1)  # (B, rows, columns, p, p, C)
    return x.reshape(batch, rows * columns, patch_size * patch_size * channels)


def unpatchify(patches: Tensor, grid: tuple[int, int], channels: int) -> Tensor:
    """The inverse of `patchify`: patches (B, N, p·p·C) of a (rows, columns) grid to images (B, C, H, W)."""
    batch, count, width = patches.shape
    rows, columns = grid
    patch_size = round((width / channels) ** 0.5)
    if count != rows * columns or patch_size * patch_size * channels != width:
        raise DataError(
            f"{count} patches of {width} values do not form a {rows}×{columns} grid of {channels}-channel patches"
        )
    x = patches.reshape(batch, rows, columns, patch_size, patch_size, channels)
    x = x.permute(0, 5, 1, 3, 2, 4)  # (B, C, rows, p, columns, p)
    return x.reshape(batch, channels, rows * patch_size, columns * patch_size)


def select(values: Tensor, indices: Tensor) -> Tensor:
    """The patches at indices (B, m) of values (B, N) or (B, N, D): (B, m) or (B, m, D)."""
    batch, count = values.shape[:2]
    rows = indices + count * torch.arange(batch, device=indices.device)[:, None]  # (B, m), counted through the batch
    return values.flatten(0, 1)[rows]  # whole rows, which a gather would copy number by number


def sincos_positions(grid: tuple[int, int], dim: int) -> Tensor:
    """Fixed positions (N, dim): half the width encodes the column, half the row, as MAE orders them."""
    if dim % 4:
        raise ConfigError(f"sin-cos positions need a width divisible by 4, not {dim}")
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    return torch.cat([_sincos(columns.flatten(), dim // 2), _sincos(rows.flatten(), dim // 2)], dim=1)


def _sincos(position: Tensor, dim: int) -> Tensor:
    """sin and cos of one coordinate (N,) at dim/2 geometric frequencies: (N, dim)."""
    frequency = 10000.0 ** -(torch.arange(dim // 2, dtype=torch.float64) / (dim / 2))
    angle = position[:, None].to(torch.float64) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1).to(torch.float32)
