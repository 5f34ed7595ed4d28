"""Scores that need no labels: pairs by hand, tokens that know the image, the place, the light, or nothing."""

from __future__ import annotations

import math
from typing import Any, Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clustermim.data import Source, open_source
from clustermim.data.color_jitter import color_jitter
from clustermim.patches import grid_size, patchify
from clustermim.scores.label_free import label_free, patch_mi_jittered
from clustermim.scores.spectral import pair_counts_between
from clustermim.tokenizers import LabelTokenizer, RandomTokenizer, Tokenizer

DATA = "textures:?images=400&grid=4&patch=4&channels=3&classes=4"


class StubTokenizer(Tokenizer):
    """Ids by a rule, for one kind of knowledge at a time."""

    kind = "stub"

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule, self.vocab_size, self.patch_size, self.channels_ = rule, 8, 4, 3

    def config(self) -> dict[str, Any]:
        return {"rule": self.rule}

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        return self

    def fit(self, source: Source) -> Self:
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        rows, columns = grid_size(images.shape[2], images.shape[3], 4)
        if self.rule == "place":
            return (torch.arange(rows * columns) % 8).expand(len(images), -1)
        if self.rule == "light":  # of the whole image
            bright = (images.mean((1, 2, 3)) * 8).long().clamp(0, 7)
            return bright[:, None].expand(-1, rows * columns)
        patches = patchify(images, 4)  # (B, N, 48)
        return (patches.mean(2) * 8).long().clamp(0, 7)


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(DATA)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_pairs_of_two_views_are_all_pairs_of_different_places(images: int, patches: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(0, size, (images, patches), generator=generator) for _ in range(2))
    found = torch.zeros(size, size, dtype=torch.int64)
    pair_counts_between(first, second, found)
    expected = torch.zeros(size, size, dtype=torch.int64)
    for image in range(images):
        for i in range(patches):
            for j in range(patches):
                if i != j:
                    expected[first[image, i], second[image, j]] += 1
                    expected[second[image, j], first[image, i]] += 1
    assert torch.equal(found, expected)
    again = found.clone()
    pair_counts_between(first, second, again)  # a second batch adds
    assert torch.equal(again, 2 * expected)


def test_labels_are_kin_in_any_light(source: Source) -> None:
    assert patch_mi_jittered(LabelTokenizer(patch_size=4).fit(source), source) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("tokenizer", [RandomTokenizer(20, 4), StubTokenizer("place")])
def test_what_knows_nothing_but_its_place_is_not_kin(tokenizer: Tokenizer, source: Source) -> None:
    tokenizer.fit(source)
    assert patch_mi_jittered(tokenizer, source) == pytest.approx(0, abs=0.02)


def test_tokens_of_the_light_are_kin_until_it_changes(source: Source) -> None:
    scores = label_free(StubTokenizer("light"), source)
    assert scores["patch_mi"] == pytest.approx(1, abs=0.02)
    assert scores["patch_mi_jittered"] < 0.5


def test_relit_repeats_and_takes_no_more_images_than_asked(source: Source) -> None:
    tokenizer = StubTokenizer("patch")
    assert patch_mi_jittered(tokenizer, source) == patch_mi_jittered(tokenizer, source)
    assert patch_mi_jittered(tokenizer, source, limit=100) == patch_mi_jittered(tokenizer, open_source(DATA), limit=100)
    assert patch_mi_jittered(tokenizer, source, limit=100) != patch_mi_jittered(tokenizer, source)


def test_images_of_one_patch_have_no_kin() -> None:
    single = open_source("textures:?images=50&grid=1&patch=4&channels=3&classes=4")
    assert math.isnan(patch_mi_jittered(StubTokenizer("patch"), single))


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_relit_images_stay_in_range_and_differ(channels: int) -> None:
    images = torch.rand(6, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    kept = images.clone()
    lit = color_jitter(images, torch.Generator().manual_seed(1))
    assert torch.equal(images, kept)
    assert lit.shape == images.shape
    assert 0 <= lit.min() <= lit.max() <= 1
    assert not torch.allclose(lit, images)
    assert torch.equal(lit, color_jitter(images, torch.Generator().manual_seed(1)))


def test_pairs_of_very_many_tokens_are_not_counted(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    found = label_free(RandomTokenizer(k=20_000, patch_size=4).fit(source), source)
    assert all(math.isnan(found[name]) for name in ("sum_sq", "patch_mi", "patch_mi_jittered"))
    assert "the pairs of 20,000 tokens would take too much memory" in capsys.readouterr().err
