"""Masks as explicit index tensors, made outside the model from random numbers that belong to each image."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from clustermim.errors import ConfigError

MIN_BLOCK = 16 / 196  # BEiT's smallest block, 16 of 14×14 patches, as a share of the grid
MAX_ASPECT = 1 / 0.3  # BEiT's blocks are at most this much higher than wide, or wider than high
MAGE_STD, MAGE_LEAST = 0.25, 0.5  # spread of MAGE's mask ratios, and the least, which is also dropped of every image
ROUNDS = 64  # proposals of a block for each image; the few patches still missing then are drawn singly


Draw = Callable[[int], Tensor]  # so many uniform numbers in [0, 1) of each image, (B, count)


class Mask(NamedTuple):
    """Which patches of each image are visible and which are masked, row-major from 0, in rising order."""

    keep: Tensor  # (B, n)
    masked: Tensor  # (B, m), n + m = N, or fewer where not all are predicted
    shown: Tensor | None = None  # of `mage_mask` only: (B, N), which of `masked` are not masked after all

    def to(self, device: torch.device | str) -> Mask:
        """The same mask on another device."""
        keep, masked = (part.to(device, non_blocking=True) for part in self[:2])
        return Mask(keep, masked, None if self.shown is None else self.shown.to(device, non_blocking=True))


def visible_count(patches: int, ratio: float, name: str = "patches") -> int:
    """How many of N patches stay visible when `ratio` of them are masked: N·(1 − ratio), rounded down as MAE does.

    `name` is what a message calls them, where they are not patches.
    """
    if not 0 < ratio < 1:
        raise ConfigError(f"a mask ratio lies between 0 and 1, not {ratio}")
    visible = int(patches * (1 - ratio) + 1e-6)  # 10 patches at 0.9 leave 1, though 10 · (1 − 0.9) is less in binary
    if not 0 < visible < patches:
        raise ConfigError(
            f"a mask ratio of {ratio} leaves {visible} of {patches} {name} visible and {patches - visible} masked; "
            f"each needs at least one"
        )
    return visible


def mask_from_noise(noise: Tensor, ratio: float) -> Mask:
    """Keep the patches with the least noise (B, N) in each image, mask the others."""
    return _keep_least(noise, visible_count(noise.shape[1], ratio))


def _keep_least(noise: Tensor, visible: int) -> Mask:
    """Keep so many patches with the least noise (B, N) in each image, mask the others."""
    batch, patches = noise.shape
    order = noise.argsort(dim=1, stable=True)  # (B, N)
    masked = torch.ones(batch, patches, dtype=torch.bool, device=noise.device)
    masked.scatter_(1, order[:, :visible], False)
    # nonzero walks row by row, so that both come out in rising order
    return Mask(
        (~masked).nonzero()[:, 1].view(batch, visible),  # (B, n)
        masked.nonzero()[:, 1].view(batch, patches - visible),  # (B, m)
    )


def pair_mask(mask: Mask) -> Mask:
    """Complementary masks: image b keeps its own, and b + B/2 shows what b hides. An odd image at the end has none."""
    (batch, shown), hidden = mask.keep.shape, mask.masked.shape[1]
    if shown != hidden:
        raise ConfigError(
            f"--layout mixmae needs as many visible as masked patches, not {shown} and {hidden}: "
            "--mask-ratio 0.5, and an even number of patches or masked squares"
        )
    keep, masked = mask.keep[: batch // 2], mask.masked[: batch // 2]
    return Mask(torch.cat([keep, masked]), torch.cat([masked, keep]))


def mage_mask(draw: Draw, patches: int, mean: float) -> Mask:
    """Mask a share of each image that is drawn from a Gaussian around `mean`, cut off to 0.5 … 1, as MAGE does.

    Half of the patches, all of them masked, are dropped; `keep` (B, n) are the others, shown or as mask tokens. So
    that all images have the same shape, `masked` (B, N) are all patches, first those of `keep`, and `shown` says which
    of them do not count. MAGE draws one share for a whole batch.
    """
    if not 0 < mean < 1:
        raise ConfigError(f"a mask ratio lies between 0 and 1, not {mean}")
    visible, gauss = visible_count(patches, MAGE_LEAST), NormalDist(mean, MAGE_STD)
    low, high = gauss.cdf(MAGE_LEAST), gauss.cdf(1.0)
    share = mean + MAGE_STD * torch.special.ndtri(low + draw(1) * (high - low))  # (B, 1)
    masked = (patches * share).ceil().clamp(patches - visible, patches)  # (B, 1), how many
    noise = draw(patches)
    keep, dropped, _ = _keep_least(noise, visible)
    order = torch.cat([keep, dropped], dim=1)  # (B, N)
    place = noise.argsort(dim=1, stable=True).argsort(dim=1)  # (B, N), the last are masked
    return Mask(keep, order, place.gather(1, order) < patches - masked)


def predict_part(mask: Mask, draw: Draw, fraction: float) -> Mask:
    """The mask with a random `fraction` of its masked patches, at least one; the others are neither seen nor asked."""
    count = max(1, round(fraction * mask.masked.shape[1]))
    noise = draw(mask.masked.shape[1])[: len(mask.masked)]  # (B, m)
    chosen = noise.argsort(dim=1, stable=True)[:, :count].sort(dim=1).values  # (B, count)
    return mask._replace(masked=mask.masked.gather(1, chosen))


def draw_from(generator: torch.Generator, batch: int) -> Draw:
    """Numbers of a generator, for images that have none of their own."""
    return lambda count: torch.rand(batch, count, generator=generator)


def random_mask(draw: Draw, patches: int, ratio: float) -> Mask:
    """Mask a random `ratio` of the patches of each image, as MAE does."""
    return mask_from_noise(draw(patches), ratio)


def unit_mask(draw: Draw, grid: tuple[int, int], unit: int, ratio: float) -> Mask:
    """Mask a random `ratio` of the (rows, columns) grid in squares of unit × unit patches, as SimMIM does.

    The squares tile the grid from its first patch on. Where they fill it, whole ones are masked, as many of each image.
    Where they do not, those at the right and at the bottom are cut, and as many patches of each image are masked as
    would be singly: at most one square of an image is then masked in part, in random patches.
    """
    rows, columns = grid
    high, wide = -(-rows // unit), -(-columns // unit)
    if high * wide < 2:
        raise ConfigError(f"--mask-patch-size {unit} makes one unit of the grid of {rows}×{columns} patches: lower it")
    fills = rows % unit == 0 and columns % unit == 0
    visible = visible_count(high * wide, ratio, "units") * unit**2 if fills else visible_count(rows * columns, ratio)
    place = draw(high * wide).argsort(1).argsort(1)  # (B, units), 0 is kept first
    place = place.view(-1, high, wide).repeat_interleave(unit, 1).repeat_interleave(unit, 2)
    place = place[:, :rows, :columns].flatten(1)  # (B, N)
    # the noise is less than the step from one unit to the next: it decides inside a unit only
    return _keep_least(place.double() + draw(rows * columns), visible)


def block_mask(draw: Draw, grid: tuple[int, int], ratio: float) -> Mask:
    """Mask rectangular blocks of the (rows, columns) grid, as BEiT does, exactly as many patches in every image.

    Each round proposes one block for each image, at least 16/196 of the grid (or what is missing, if that is less).
    Blocks may overlap; one that would mask too many patches is dropped.
    """
    patches = grid[0] * grid[1]
    count = patches - visible_count(patches, ratio)
    noise = draw(patches)
    covered = torch.zeros(len(noise), *grid, dtype=torch.bool)
    for _ in range(ROUNDS):
        missing = count - covered.sum((1, 2))  # (B,)
        if not missing.any():
            break
        block = _blocks(missing, grid, draw(4)) & ~covered  # (B, rows, columns)
        fits = block.sum((1, 2)) <= missing  # (B,)
        covered |= block & fits[:, None, None]
    # what blocks cover has more noise than all the rest, so that it is masked first
    return mask_from_noise(noise + covered.flatten(1), ratio)


def _blocks(most: Tensor, grid: tuple[int, int], draws: Tensor) -> Tensor:
    """A rectangle of about at most `most` (B,) patches for each image, as flags (B, rows, columns), by draws (B, 4)."""
    rows, columns = grid
    u = draws.T  # (4, B)
    least = most.clamp(max=max(1, round(MIN_BLOCK * rows * columns)))  # (B,)
    area = least + u[0] * (most - least)  # (B,)
    aspect = torch.exp((2 * u[1] - 1) * math.log(MAX_ASPECT))  # (B,), log-uniform
    height = (area * aspect).sqrt().round().clamp(1, rows)  # (B,)
    width = (area / aspect).sqrt().round().clamp(1, columns)  # (B,)
    inside_rows = _interval((u[2] * (rows - height + 1)).floor(), height, rows)  # (B, rows)
    inside_columns = _interval((u[3] * (columns - width + 1)).floor(), width, columns)  # (B, columns)
    return inside_rows[:, :, None] & inside_columns[:, None, :]  # (B, rows, columns)


def inverse_block_mask(draw: Draw, grid: tuple[int, int], ratio: float) -> Mask:
    """Show one block of the (rows, columns) grid and mask all else, as CAPI does.

    The block has a random shape and lies anywhere: what reaches over an edge goes on at the opposite one. So every
    patch is visible alike often. A rectangle seldom has the wanted size: it is a little larger, and random patches of
    it are masked.
    """
    rows, columns = grid
    visible = visible_count(rows * columns, ratio)
    noise, (u, top, left) = draw(rows * columns), draw(3).T  # (B, N), (B,) each
    aspect = torch.exp((2 * u - 1) * math.log(MAX_ASPECT))  # log-uniform
    height = (visible * aspect).sqrt().round().clamp(-(-visible // columns), min(rows, visible))  # (B,)
    width = (visible / height).ceil()  # (B,), at most the columns
    inside_rows = _cyclic_interval((top * rows).floor(), height, rows)  # (B, rows)
    inside_columns = _cyclic_interval((left * columns).floor(), width, columns)  # (B, columns)
    inside = inside_rows[:, :, None] & inside_columns[:, None, :]  # (B, rows, columns)
    return _keep_least(noise + ~inside.flatten(1), visible)  # what is outside has more noise than all inside


def _cyclic_interval(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Flags (B, size) that are true from `start` (B,) on for `length` (B,) places, and from 0 on after the last."""
    return (torch.arange(size) - start[:, None]) % size < length[:, None]  # (B, size)


def _interval(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Flags (B, size) that are true from `start` (B,) on for `length` (B,) places."""
    place = torch.arange(size)  # (size,)
    return (place >= start[:, None]) & (place < (start + length)[:, None])  # (B, size)
