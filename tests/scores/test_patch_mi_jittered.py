"""Pairs of patches: by hand; tokens that know the image, the position, the colours, or nothing; large codebooks."""

from __future__ import annotations

import math
import sys
from typing import Any, Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clustermim.data import Source, open_source
from clustermim.data.augment import color_jitter
from clustermim.patches import grid_size, patchify
from clustermim.scores import TCASVariant, Tokens, base, score
from clustermim.scores.patch_mi import patch_mi_jittered
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


def jittered(tokenizer: Tokenizer, source: Source, limit: int = 2048) -> float:
    return patch_mi_jittered(Tokens(tokenizer, source, TCASVariant()), limit)


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


def test_labels_are_related_in_any_colours(source: Source) -> None:
    assert jittered(LabelTokenizer(patch_size=4).fit(source), source) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("tokenizer", [RandomTokenizer(20, 4), StubTokenizer("place")])
def test_what_knows_nothing_but_its_position_is_not_related(tokenizer: Tokenizer, source: Source) -> None:
    tokenizer.fit(source)
    assert jittered(tokenizer, source) == pytest.approx(0, abs=0.02)


def test_tokens_of_the_brightness_are_related_until_it_changes(source: Source) -> None:
    scores = score(StubTokenizer("light"), source, scores=["patch_mi", "patch_mi_jittered"]).values
    assert scores["patch_mi"] == pytest.approx(1, abs=0.02)
    assert scores["patch_mi_jittered"] < 0.5


def test_jittered_copies_repeat_and_take_no_more_images_than_asked(source: Source) -> None:
    tokenizer = StubTokenizer("patch")
    assert jittered(tokenizer, source) == jittered(tokenizer, source)
    assert jittered(tokenizer, source, limit=100) == jittered(tokenizer, open_source(DATA), limit=100)
    assert jittered(tokenizer, source, limit=100) != jittered(tokenizer, source)


def test_images_of_one_patch_have_no_pairs() -> None:
    single = open_source("textures:?images=50&grid=1&patch=4&channels=3&classes=4")
    found = score(StubTokenizer("patch"), single, scores=["patch_mi_jittered"])
    assert math.isnan(found.values["patch_mi_jittered"])
    assert "one patch" in found.notes["patch_mi_jittered"]


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_jittered_images_stay_in_range_and_differ(channels: int) -> None:
    images = torch.rand(6, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    kept = images.clone()
    lit = color_jitter(images, torch.Generator().manual_seed(1))
    assert torch.equal(images, kept)
    assert lit.shape == images.shape
    assert 0 <= lit.min() <= lit.max() <= 1
    assert not torch.allclose(lit, images)
    assert torch.equal(lit, color_jitter(images, torch.Generator().manual_seed(1)))


def test_of_a_large_codebook_only_tokens_that_occur_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    few, names = open_source(DATA.replace("400", "40")), ["sum_sq", "sum_sq_plug_in", "patch_mi", "patch_mi_jittered"]
    tokenizer = RandomTokenizer(k=600, patch_size=4).fit(few)
    expected = score(tokenizer, few, scores=names).values
    module = sys.modules[patch_mi_jittered.__module__]  # the function patch_mi has its name
    monkeypatch.setattr(module, "MOST_TOKENS", 100)
    assert score(tokenizer, few, scores=names).values == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(base, "MEMORY", 1e6)
    found = score(tokenizer, few, scores=names)
    assert all(math.isnan(value) for value in found.values.values())
    assert "tokens would take" in found.notes["sum_sq"]
