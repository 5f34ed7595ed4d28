"""Masks: counts, completeness, seeds, and blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clustermim.errors import ConfigError
from clustermim.models.masking import (
    Mask,
    block_mask,
    draw_from,
    inverse_block_mask,
    mask_from_noise,
    predict_part,
    random_mask,
    unit_mask,
    visible_count,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check(mask: Mask, batch: int, patches: int, ratio: float) -> None:
    """Disjoint, complete, sorted, and as many as asked for."""
    visible = visible_count(patches, ratio)
    assert mask.keep.shape == (batch, visible)
    assert mask.masked.shape == (batch, patches - visible)
    assert mask.keep.dtype == mask.masked.dtype == torch.long
    assert torch.equal(torch.cat(mask[:2], 1).sort(1).values, torch.arange(patches).expand(batch, -1))
    assert all(torch.equal(part, part.sort(1).values) for part in mask[:2])


@given(st.integers(1, 5), st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 99))
def test_random_masks(batch: int, patches: int, ratio: float, seed: int) -> None:
    if int(patches * (1 - ratio) + 1e-6) < 1:
        with pytest.raises(ConfigError):
            random_mask(draw_from(seeded(seed), batch), patches, ratio)
        return
    check(random_mask(draw_from(seeded(seed), batch), patches, ratio), batch, patches, ratio)


@given(st.integers(1, 5), st.integers(1, 16), st.integers(2, 16), st.floats(0.05, 0.95), st.integers(0, 99))
def test_block_masks(batch: int, rows: int, columns: int, ratio: float, seed: int) -> None:
    if int(rows * columns * (1 - ratio) + 1e-6) < 1:
        with pytest.raises(ConfigError):
            block_mask(draw_from(seeded(seed), batch), (rows, columns), ratio)
        return
    check(block_mask(draw_from(seeded(seed), batch), (rows, columns), ratio), batch, rows * columns, ratio)


@given(st.integers(1, 5), st.integers(1, 16), st.integers(2, 16), st.floats(0.05, 0.95), st.integers(0, 99))
def test_inverse_block_masks(batch: int, rows: int, columns: int, ratio: float, seed: int) -> None:
    if int(rows * columns * (1 - ratio) + 1e-6) < 1:
        with pytest.raises(ConfigError):
            inverse_block_mask(draw_from(seeded(seed), batch), (rows, columns), ratio)
        return
    mask = inverse_block_mask(draw_from(seeded(seed), batch), (rows, columns), ratio)
    check(mask, batch, rows * columns, ratio)
    for keep in mask.keep:  # they lie in a rectangle on the cylinder, of hardly more patches
        height, width = around(keep // columns, rows), around(keep % columns, columns)
        assert height * width < len(keep) + max(height, width) + 1


def around(places: torch.Tensor, size: int) -> int:
    """The length of the shortest interval on a circle that has all places."""
    found = places.unique()
    gaps = torch.cat([found[1:] - found[:-1], found[:1] + size - found[-1:]])
    return size - int(gaps.max()) + 1


def test_every_patch_is_shown_alike_often() -> None:
    keep = inverse_block_mask(draw_from(seeded(), 8000), (4, 6), 0.75).keep
    share = keep.flatten().bincount(minlength=24) / 8000
    assert (share - 0.25).abs().max() < 0.025  # five standard deviations


@given(st.integers(1, 5), st.integers(2, 60), st.floats(0.001, 1), st.integers(0, 99))
def test_part_of_the_masked(batch: int, patches: int, fraction: float, seed: int) -> None:
    draw = draw_from(seeded(seed), batch)
    whole = random_mask(draw, patches, 0.5)
    part = predict_part(whole, draw, fraction)
    assert part.keep is whole.keep
    assert part.masked.shape == (batch, max(1, round(fraction * whole.masked.shape[1])))
    assert (part.masked.diff(dim=1) > 0).all()  # in rising order, none twice
    assert (part.masked[:, :, None] == whole.masked[:, None]).any(2).all()


def test_each_image_has_a_part_of_its_own_and_all_are_asked_alike() -> None:
    draw = draw_from(seeded(), 4000)
    whole = Mask(torch.zeros(4000, 1).long(), torch.arange(1, 9).expand(4000, -1))
    counts = predict_part(whole, draw, 0.25).masked.flatten().bincount(minlength=9)[1:]
    assert counts.sum() == 8000
    assert (counts - 1000).abs().max() < 150  # five standard deviations


def test_the_seed_decides() -> None:
    for draw in (
        lambda g: random_mask(draw_from(g, 8), 64, 0.75),
        lambda g: block_mask(draw_from(g, 8), (8, 8), 0.4),
        lambda g: unit_mask(draw_from(g, 8), (8, 9), 2, 0.6),
        lambda g: inverse_block_mask(draw_from(g, 8), (8, 8), 0.65),
    ):
        generator = seeded(1)
        first, second = draw(generator), draw(generator)
        assert torch.equal(first.keep, draw(seeded(1)).keep)
        assert not torch.equal(first.keep, second.keep)
        assert not torch.equal(first.keep, draw(seeded(2)).keep)
        assert not torch.equal(first.keep[0], first.keep[1])


def test_global_randomness_is_left_alone() -> None:
    before = torch.get_rng_state()
    random_mask(draw_from(seeded(), 4), 16, 0.5)
    block_mask(draw_from(seeded(), 4), (4, 4), 0.5)
    unit_mask(draw_from(seeded(), 4), (4, 5), 2, 0.5)
    assert torch.equal(before, torch.get_rng_state())


def test_least_noise_is_kept() -> None:
    mask = mask_from_noise(torch.tensor([[0.3, 0.1, 0.9, 0.2], [0.0, 0.7, 0.6, 0.5]]), 0.5)
    assert mask.keep.tolist() == [[1, 3], [0, 3]]
    assert mask.masked.tolist() == [[0, 2], [1, 2]]


def test_every_patch_is_masked_alike_often() -> None:
    masked = random_mask(draw_from(seeded(), 4000), 16, 0.75).masked
    share = masked.flatten().bincount(minlength=16) / 4000
    assert (share - 0.75).abs().max() < 0.03


def neighbours(mask: Mask, grid: tuple[int, int]) -> float:
    """The mean number of pairs of adjacent masked patches in an image."""
    flags = torch.zeros(len(mask.masked), grid[0] * grid[1])
    flags = flags.scatter(1, mask.masked, 1.0).unflatten(1, grid)
    pairs = (flags[:, 1:] * flags[:, :-1]).sum() + (flags[:, :, 1:] * flags[:, :, :-1]).sum()
    return pairs.item() / len(flags)


@pytest.mark.parametrize(("grid", "ratio"), [((14, 14), 0.4), ((8, 8), 0.4), ((6, 10), 0.4), ((14, 14), 0.75)])
def test_blocks_hang_together(grid: tuple[int, int], ratio: float) -> None:
    patches = grid[0] * grid[1]
    blocks = neighbours(block_mask(draw_from(seeded(), 200), grid, ratio), grid)
    scattered = neighbours(random_mask(draw_from(seeded(), 200), patches, ratio), grid)
    every = neighbours(Mask(torch.empty(1, 0), torch.arange(patches)[None]), grid)
    assert scattered == pytest.approx(every * ratio**2, rel=0.05)
    # random patches fill ratio² of all pairs; blocks come most of the way from there to ratio
    assert blocks > every * (0.35 * ratio**2 + 0.65 * ratio)


def masked_of_units(mask: Mask, grid: tuple[int, int], unit: int) -> list[dict[tuple[int, int], int]]:
    """For each image, how many patches of each unit that has any are masked."""
    found: list[dict[tuple[int, int], int]] = []
    for image in mask.masked.tolist():
        counts: dict[tuple[int, int], int] = {}
        for patch in image:
            place = patch // grid[1] // unit, patch % grid[1] // unit
            counts[place] = counts.get(place, 0) + 1
        found.append(counts)
    return found


grids, units = st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 5)


@given(st.integers(1, 4), grids, units, st.floats(0.05, 0.95), st.integers(0, 99))
def test_unit_masks(batch: int, grid: tuple[int, int], unit: int, ratio: float, seed: int) -> None:
    rows, columns = grid
    high, wide = -(-rows // unit), -(-columns // unit)
    fills = rows % unit == 0 and columns % unit == 0
    things = high * wide if fills else rows * columns
    if high * wide < 2 or int(things * (1 - ratio) + 1e-6) < 1:
        with pytest.raises(ConfigError, match="makes one unit" if high * wide < 2 else "leaves 0 of"):
            unit_mask(draw_from(seeded(seed), batch), grid, unit, ratio)
        return
    mask = unit_mask(draw_from(seeded(seed), batch), grid, unit, ratio)
    assert torch.equal(torch.cat(mask[:2], 1).sort(1).values, torch.arange(rows * columns).expand(batch, -1))
    assert all(torch.equal(part, part.sort(1).values) for part in mask[:2])
    visible = visible_count(things, ratio) * (unit**2 if fills else 1)
    assert mask.keep.shape == (batch, visible)
    for counts in masked_of_units(mask, grid, unit):
        whole = {(y, x): min(unit, rows - y * unit) * min(unit, columns - x * unit) for y, x in counts}
        in_part = [place for place, count in counts.items() if count < whole[place]]
        assert len(in_part) <= (0 if fills else 1)


def test_units_as_simmim_has_them() -> None:
    """Patches of 16 pixels in units of 32 on images of 192 and 224: ⌈0.6 · units⌉ are masked."""
    assert unit_mask(draw_from(seeded(), 1), (12, 12), 2, 0.6).masked.shape == (1, 4 * 22)
    assert unit_mask(draw_from(seeded(), 1), (14, 14), 2, 0.6).masked.shape == (1, 4 * 30)


@pytest.mark.parametrize("grid", [(8, 8), (5, 7)])
def test_patches_of_units_are_masked_alike_often(grid: tuple[int, int]) -> None:
    patches = grid[0] * grid[1]
    masked = unit_mask(draw_from(seeded(), 4000), grid, 2, 0.6).masked
    share = masked.flatten().bincount(minlength=patches) / 4000
    # patches of a cut unit are a little rarer or more frequent
    assert (share - masked.shape[1] / patches).abs().max() < (0.03 if grid == (8, 8) else 0.06)


def test_units_of_one_patch_are_single_patches() -> None:
    mask = unit_mask(draw_from(seeded(), 2000), (3, 4), 1, 0.5)
    assert mask.masked.shape == random_mask(draw_from(seeded(), 2000), 12, 0.5).masked.shape
    every = neighbours(Mask(torch.empty(1, 0), torch.arange(12)[None]), (3, 4))
    assert neighbours(mask, (3, 4)) == pytest.approx(every * 0.5 * 5 / 11, rel=0.05)  # two of 12, without replacement


def test_counts_as_mae_rounds_them() -> None:
    assert visible_count(196, 0.75) == 49
    assert visible_count(64, 0.75) == 16
    assert visible_count(196, 0.4) == 117
    assert visible_count(10, 0.9) == 1  # 10 · (1 − 0.9) is 0.9999999999999998 in binary


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_ratios_out_of_range(ratio: float) -> None:
    with pytest.raises(ConfigError, match=f"a mask ratio lies between 0 and 1, not {ratio}"):
        random_mask(draw_from(seeded(), 2), 64, ratio)


def test_ratios_that_leave_nothing() -> None:
    message = "a mask ratio of 0.99 leaves 0 of 64 patches visible and 64 masked"
    with pytest.raises(ConfigError, match=message):
        random_mask(draw_from(seeded(), 2), 64, 0.99)
    with pytest.raises(ConfigError, match=message):
        block_mask(draw_from(seeded(), 2), (8, 8), 0.99)
    with pytest.raises(ConfigError, match="leaves 64 of 64 patches visible and 0 masked"):
        random_mask(draw_from(seeded(), 2), 64, 1e-9)


def test_units_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="--mask-patch-size 8 makes one unit of the grid of 4×8 patches: lower it"):
        unit_mask(draw_from(seeded(), 2), (4, 8), 8, 0.5)
    with pytest.raises(ConfigError, match="leaves 0 of 4 units visible and 4 masked"):
        unit_mask(draw_from(seeded(), 2), (4, 4), 2, 0.8)


def test_masks_move_together() -> None:
    mask = random_mask(draw_from(seeded(), 2), 16, 0.5).to("meta")
    assert isinstance(mask, Mask)
    assert {part.device.type for part in mask[:2]} == {"meta"}
