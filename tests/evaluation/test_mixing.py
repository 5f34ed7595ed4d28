"""Soft targets, mixup, CutMix, erasing and RandAugment: exact values, properties, and who may draw what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from clustermim.errors import ConfigError
from clustermim.evaluation.mixing import (
    ERASED_AREA,
    GROUP,
    MixConfig,
    RandAugment,
    cutmix_batch,
    draw_beta,
    draw_box,
    erase,
    mixup_batch,
    soft_targets,
)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_soft_targets_by_hand() -> None:
    found = soft_targets(torch.tensor([2, 0]), 4, 0.1)
    expected = torch.tensor([[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]])
    torch.testing.assert_close(found, expected)
    assert torch.equal(soft_targets(torch.tensor([1]), 3, 0.0), torch.tensor([[0.0, 1.0, 0.0]]))


@given(st.integers(1, 12), st.integers(1, 30), st.floats(0, 0.99), st.integers(0, 99))
def test_soft_targets_are_the_label_smoothing_of_torch(count: int, classes: int, smoothing: float, seed: int) -> None:
    labels = torch.randint(classes, (count,), generator=seeded(seed))
    scores = 3 * torch.randn(count, classes, generator=seeded(seed))
    targets = soft_targets(labels, classes, smoothing)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(count))
    expected = F.cross_entropy(scores, labels, label_smoothing=smoothing)
    torch.testing.assert_close(F.cross_entropy(scores, targets), expected, rtol=1e-4, atol=1e-5)


def test_mixup_by_hand() -> None:
    images, targets = torch.rand(3, 2, 4, 4), soft_targets(torch.tensor([0, 1, 2]), 3, 0.0)
    mixed, soft = mixup_batch(images, targets, 0.3)
    for place, partner in ((0, 2), (1, 1), (2, 0)):
        torch.testing.assert_close(mixed[place], 0.3 * images[place] + 0.7 * images[partner])
    torch.testing.assert_close(soft, torch.tensor([[0.3, 0.0, 0.7], [0.0, 1.0, 0.0], [0.7, 0.0, 0.3]]))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_targets_of_cutmix_are_the_pixels_of_each_image(share: float, seed: int) -> None:
    images = torch.stack([torch.full((2, 8, 12), 1.0), torch.full((2, 8, 12), 2.0)])
    mixed, soft = cutmix_batch(images, soft_targets(torch.tensor([0, 1]), 2, 0.0), share, seeded(seed))
    own = torch.stack([(mixed[0] == 1).float().mean(), (mixed[1] == 2).float().mean()])
    torch.testing.assert_close(soft.diagonal(), own)
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(2))
    pasted = torch.nonzero(mixed[0, 0] == 2)
    if len(pasted):  # one whole box
        height, width = (pasted.max(dim=0).values - pasted.min(dim=0).values + 1).tolist()
        assert height * width == len(pasted)
    assert images[0].eq(1).all()  # the batch itself is not written to


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.floats(0, 1), st.integers(0, 99))
def test_mixup_and_cutmix_pixel_by_pixel(count: int, height: int, width: int, share: float, seed: int) -> None:
    images = torch.rand(count, 2, height, width, generator=seeded(seed))
    targets = soft_targets(torch.arange(count), count, 0.1)
    top, left, bottom, right = draw_box(height, width, 1 - share, seeded(seed))  # the first thing that is drawn
    blended, cut, pasted = np.zeros(images.shape), np.zeros(images.shape), 0
    for place, row, column in np.ndindex(count, height, width):
        own, other = (images[index, :, row, column].numpy() for index in (place, count - 1 - place))
        inside = top <= row < bottom and left <= column < right
        blended[place, :, row, column] = share * own + (1 - share) * other
        cut[place, :, row, column] = other if inside else own
        pasted += inside
    for kept, pixels, mixed in (
        (share, blended, mixup_batch(images, targets, share)),
        (1 - pasted / (count * height * width), cut, cutmix_batch(images, targets, share, seeded(seed))),
    ):
        np.testing.assert_allclose(mixed[0].numpy(), pixels, rtol=0, atol=1e-6)
        soft = kept * targets.numpy() + (1 - kept) * targets.numpy()[::-1]
        np.testing.assert_allclose(mixed[1].numpy(), soft, rtol=0, atol=1e-6)


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 99))
def test_boxes_lie_in_the_image(height: int, width: int, area: float, seed: int) -> None:
    top, left, bottom, right = draw_box(height, width, area, seeded(seed))
    assert 0 <= top <= bottom <= height
    assert 0 <= left <= right <= width
    assert bottom - top <= round(height * area**0.5)
    assert right - left <= round(width * area**0.5)


def test_boxes_that_the_edge_does_not_cut_have_the_area_that_was_asked_for() -> None:
    boxes = [draw_box(32, 32, 0.25, seeded(seed)) for seed in range(200)]
    areas = [(bottom - top) * (right - left) for top, left, bottom, right in boxes]
    whole = [area for area, box in zip(areas, boxes, strict=True) if min(box) > 0 and max(box) < 32]
    assert len(whole) > 20
    assert set(whole) == {256}
    assert len(set(boxes)) > 100


def test_erasing_fills_one_box_of_some_images_with_noise() -> None:
    images = torch.full((400, 3, 16, 24), 7.0)
    erased = erase(images, 0.25, seeded())
    changed = (erased != 7).all(dim=1)  # (B, H, W): a pixel is lost in all channels
    assert torch.equal(changed, (erased != 7).any(dim=1))
    some = changed.flatten(1).any(dim=1)
    assert 0.17 < some.float().mean() < 0.33
    for mask in changed[some]:
        rows, columns = torch.nonzero(mask.any(dim=1)), torch.nonzero(mask.any(dim=0))
        box = mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert box.all()
        assert ERASED_AREA[0] * 0.5 <= mask.float().mean() <= ERASED_AREA[1] * 1.2  # whole pixels are rough
    noise = erased[(erased != 7)]
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1) < 0.05
    assert torch.equal(erase(images, 0.0, seeded()), images)


def test_erasing_all_images_or_none() -> None:
    images = torch.rand(50, 5, 8, 12, generator=seeded())
    kept = images.clone()
    erased = erase(images, 1.0, seeded(1))
    changed = (erased != images).any(dim=1)  # (B, H, W)
    assert changed.flatten(1).any(dim=1).all()
    assert not changed.flatten(1).all(dim=1).any()  # what is outside the boxes stays
    assert torch.equal(erase(images, 1.0, seeded(1)), erased)
    assert not torch.equal(erase(images, 1.0, seeded(2)), erased)
    assert torch.equal(erase(images, 0.0, seeded(1)), images)
    assert torch.equal(images, kept)  # the batch itself is not written to
    some = (erase(images, 0.5, seeded(1)) != images).any(dim=1)
    assert 0 < int(some.flatten(1).any(dim=1).sum()) < 50
    assert torch.equal(some & changed, some)  # who is chosen does not move the boxes


def test_beta_has_its_mean_and_spread() -> None:
    generator = seeded()
    for alpha in (0.8, 1.0):
        draws = np.array([draw_beta(alpha, generator) for _ in range(2000)])
        assert abs(draws.mean() - 0.5) < 0.03
        assert draws.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 1.0), (0.8, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_each_batch_gets_one_of_both(mixup: float, cutmix: float) -> None:
    images = torch.stack([torch.full((1, 8, 8), 1.0), torch.full((1, 8, 8), 3.0)])
    kinds = {"cut": 0, "blend": 0, "none": 0}
    for seed in range(100):
        mixed, targets = MixConfig(mixup, cutmix, 0.0, 0.0)(images, torch.tensor([0, 1]), 2, seeded(seed))
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(2))
        values = set(mixed[0].unique().tolist())
        kind = "none" if values == {1.0} else "cut" if values <= {1.0, 3.0} else "blend"
        kinds[kind] += 1
        # what is seen is what is asked for: the mean brightness is the mixture of the two
        torch.testing.assert_close(mixed[0].mean(), targets[0] @ torch.tensor([1.0, 3.0]), rtol=1e-5, atol=1e-5)
    assert (kinds["cut"] > 25) == bool(cutmix)
    assert (kinds["blend"] > 25) == bool(mixup)
    assert (kinds["none"] == 100) == (not mixup and not cutmix)


def test_the_generator_decides_alone() -> None:
    images, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
    mixing = MixConfig(0.8, 1.0, 0.1, 0.5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = mixing(images, labels, 3, seeded(4))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    torch.rand(5)
    np.random.rand(5)  # noqa: NPY002
    again, other = mixing(images, labels, 3, seeded(4)), mixing(images, labels, 3, seeded(5))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: MixConfig(-0.1, 1.0, 0.1, 0.25),
        lambda: MixConfig(0.8, float("nan"), 0.1, 0.25),
        lambda: MixConfig(0.8, 1.0, 1.0, 0.25),
        lambda: MixConfig(0.8, 1.0, 0.1, 1.5),
        lambda: RandAugment(16, 9, 3),
        lambda: RandAugment(15, 9, 1),  # saturation needs colours
        lambda: RandAugment(-1, 9, 3),
        lambda: RandAugment(2, 30, 3),
        lambda: RandAugment(2, 0, 3),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="--"):
        make()


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_randaugment_leaves_the_global_generator_alone(channels: int) -> None:
    images = torch.rand(2 * GROUP + 3, channels, 8, 12)
    policy = RandAugment(2, 9, channels)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = policy(images, 7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(9)
    assert torch.equal(policy(images, 7), first)
    assert not torch.equal(policy(images, 8), first)
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1
    assert not torch.equal(first, images)


def test_randaugment_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    RandAugment(2, 9, 3)
    assert not capsys.readouterr().err
    RandAugment(2, 9, 5)
    assert "--randaugment-ops 0 turns it off" in capsys.readouterr().err
