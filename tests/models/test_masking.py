"""Masks: counts, completeness, seeds, and blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clustermim.errors import ConfigError
from clustermim.models import Mask, block_mask, mask_from_noise, random_mask, visible_count


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check(mask: Mask, batch: int, patches: int, ratio: float) -> None:
    """Disjoint, complete, sorted, and as many as asked for."""
    visible = visible_count(patches, ratio)
    assert mask.keep.shape == (batch, visible)
    assert mask.masked.shape == (batch, patches - visible)
    assert mask.keep.dtype == mask.masked.dtype == torch.long
    assert torch.equal(torch.cat(mask, 1).sort(1).values, torch.arange(patches).expand(batch, -1))
    assert all(torch.equal(part, part.sort(1).values) for part in mask)


@given(st.integers(1, 5), st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 99))
def test_random_masks(batch: int, patches: int, ratio: float, seed: int) -> None:
    if int(patches * (1 - ratio) + 1e-6) < 1:
        with pytest.raises(ConfigError):
            random_mask(batch, patches, ratio, seeded(seed))
        return
    check(random_mask(batch, patches, ratio, seeded(seed)), batch, patches, ratio)


@given(st.integers(1, 5), st.integers(1, 16), st.integers(2, 16), st.floats(0.05, 0.95), st.integers(0, 99))
def test_block_masks(batch: int, rows: int, columns: int, ratio: float, seed: int) -> None:
    if int(rows * columns * (1 - ratio) + 1e-6) < 1:
        with pytest.raises(ConfigError):
            block_mask(batch, (rows, columns), ratio, seeded(seed))
        return
    check(block_mask(batch, (rows, columns), ratio, seeded(seed)), batch, rows * columns, ratio)


def test_the_seed_decides() -> None:
    for draw in (lambda g: random_mask(8, 64, 0.75, g), lambda g: block_mask(8, (8, 8), 0.4, g)):
        generator = seeded(1)
        first, second = draw(generator), draw(generator)
        assert torch.equal(first.keep, draw(seeded(1)).keep)
        assert not torch.equal(first.keep, second.keep)
        assert not torch.equal(first.keep, draw(seeded(2)).keep)
        assert not torch.equal(first.keep[0], first.keep[1])


def test_global_randomness_is_left_alone() -> None:
    before = torch.get_rng_state()
    random_mask(4, 16, 0.5, seeded())
    block_mask(4, (4, 4), 0.5, seeded())
    assert torch.equal(before, torch.get_rng_state())


def test_least_noise_is_kept() -> None:
    mask = mask_from_noise(torch.tensor([[0.3, 0.1, 0.9, 0.2], [0.0, 0.7, 0.6, 0.5]]), 0.5)
    assert mask.keep.tolist() == [[1, 3], [0, 3]]
    assert mask.masked.tolist() == [[0, 2], [1, 2]]


def test_every_patch_is_masked_alike_often() -> None:
    masked = random_mask(4000, 16, 0.75, seeded()).masked
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
    blocks = neighbours(block_mask(200, grid, ratio, seeded()), grid)
    scattered = neighbours(random_mask(200, patches, ratio, seeded()), grid)
    every = neighbours(Mask(torch.empty(1, 0), torch.arange(patches)[None]), grid)
    assert scattered == pytest.approx(every * ratio**2, rel=0.05)
    # random patches fill ratio² of all pairs; blocks come most of the way from there to ratio
    assert blocks > every * (0.35 * ratio**2 + 0.65 * ratio)


def test_counts_as_mae_rounds_them() -> None:
    assert visible_count(196, 0.75) == 49
    assert visible_count(64, 0.75) == 16
    assert visible_count(196, 0.4) == 117
    assert visible_count(10, 0.9) == 1  # 10 · (1 − 0.9) is 0.9999999999999998 in binary


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_ratios_out_of_range(ratio: float) -> None:
    with pytest.raises(ConfigError, match=f"a mask ratio lies between 0 and 1, not {ratio}"):
        random_mask(2, 64, ratio, seeded())


def test_ratios_that_leave_nothing() -> None:
    message = "a mask ratio of 0.99 leaves 0 of 64 patches visible and 64 masked"
    with pytest.raises(ConfigError, match=message):
        random_mask(2, 64, 0.99, seeded())
    with pytest.raises(ConfigError, match=message):
        block_mask(2, (8, 8), 0.99, seeded())
    with pytest.raises(ConfigError, match="leaves 64 of 64 patches visible and 0 masked"):
        random_mask(2, 64, 1e-9, seeded())


def test_masks_move_together() -> None:
    mask = random_mask(2, 16, 0.5, seeded()).to("meta")
    assert isinstance(mask, Mask)
    assert {part.device.type for part in mask} == {"meta"}
