"""Transferability and view retrieval: of tokens of the class, of the image, of nothing; sampling, halves, parts."""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.data import Source, open_source, to_float
from clustermim.errors import DataError
from clustermim.scores import Scores, TCASVariant, Tokens, score
from clustermim.scores import collect as module
from clustermim.scores.bags import PARTS, bag_accuracies, half_retrievals, halves, split, transfer
from clustermim.scores.collect import sample
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer, Tokenizer

DATA = "textures:?images=400&grid=4&patch=4&channels=3&classes=4&noise=0.1"


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(DATA)


def scored(tokenizer: Tokenizer, source: Source, images: int = 4096) -> Scores:
    names = ("transferability", "bag_accuracy", "half_retrieval", "view_retrieval")
    return score(tokenizer, source, scores=names, images=images)


def test_tokens_of_the_class_transfer_nearly_all(source: Source) -> None:
    tokens = Tokens(LabelTokenizer(patch_size=4).fit(source), source, TCASVariant())
    assert bag_accuracies(tokens) == [1.0] * 8
    # 50 images of four classes: the other half of an image is one of a dozen alike
    assert sum(half_retrievals(tokens)) / 8 == pytest.approx(4 / 50, abs=0.01)
    assert scored(tokens.tokenizer, source).values["transferability"] == pytest.approx(0.92, abs=0.01)


def test_tokens_of_nothing_transfer_nothing(source: Source) -> None:
    more = open_source(DATA.replace("400", "3200"))
    found = scored(RandomTokenizer(k=5, patch_size=4).fit(source), more)
    assert found.values["transferability"] == pytest.approx(0, abs=0.03)
    _, low, high, *_ = found.results["transferability"]
    assert low < found.values["transferability"] < high
    assert found.values["half_retrieval"] < 0.02
    _, low, high, *_ = found.results["view_retrieval"]
    assert low < found.values["view_retrieval"] < min(0.02, high)


def test_the_parts_are_a_product() -> None:
    assert transfer([0.55, 0.1], [0.5, 0.2], 0.1) == pytest.approx([0.25, 0])
    assert transfer([0.2, 0.3], [0.9, 0.0], 0.5) == [0, 0]  # less than chance is none, found again or not


def test_rare_classes_weigh_as_much_as_frequent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that say little of the class transfer little, whatever the share of the largest class."""
    source = open_source(DATA.replace("400", "4096"))
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(4096, generator=generator) < 0.1).long()
    monkeypatch.setattr(source, "labels", labels.numpy())
    found = []
    for strength in (0.0, 0.2, 0.4):
        said = torch.rand(4096, 16, generator=generator) < strength
        ids = torch.where(said, labels[:, None] * 5, 0) + torch.randint(5, (4096, 16), generator=generator)
        monkeypatch.setattr(module, "sample", lambda *_, drawn=ids: (drawn[None], torch.arange(4096)))
        tokenizer = RandomTokenizer(k=10, patch_size=4).fit(source)
        found.append(score(tokenizer, source, scores=["transferability"]).values["transferability"])
    assert found[0] == pytest.approx(0, abs=0.05)
    assert found[0] < found[1] < found[2]


def test_so_many_images_at_random_and_the_same_again(source: Source) -> None:
    tokenizer = KMeansTokenizer(4, 4).fit(source)
    (ids,), drawn = sample(tokenizer, source, 100)
    assert drawn.tolist() == source.shuffle(0)[:100].tolist()
    assert ids.shape == (100, 16)
    expected = tokenizer(torch.stack([source[int(index)][0] for index in drawn]).float() / 255)
    assert torch.equal(ids, expected)
    assert scored(tokenizer, source, 100) == scored(tokenizer, source, 100)


def test_all_that_are_drawn_of_shards_are_used(
    tmp_path: Path, noise: Callable[..., Any], encode: Callable[..., bytes]
) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as file:
        for row, image in enumerate(noise(60, 8, 8, 3)):
            for suffix, data in (("png", encode(image, "PNG")), ("cls", b"%d" % (row % 2))):
                member = tarfile.TarInfo(f"{row:03}.{suffix}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    shards = open_source(f"wds:{tmp_path}/some.tar")
    tokenizer = KMeansTokenizer(4, 4).fit(shards)
    for source in (shards, open_source(f"wds:{tmp_path}/some.tar?limit=50")):
        (ids,), drawn = sample(tokenizer, source, 40)
        assert drawn.tolist() == np.random.default_rng(0).permutation(len(source))[:40].tolist()
        expected = [tokenizer(source[int(index)][0][None].float() / 255)[0].tolist() for index in drawn]
        assert ids.tolist() == expected


def test_halves_of_wide_narrow_and_odd_grids() -> None:
    ids = torch.arange(6)[None]
    assert [part.tolist() for part in halves(ids, (2, 3))] == [[[0, 3]], [[2, 5]]]
    assert [part.tolist() for part in halves(ids, (6, 1))] == [[[0, 1, 2]], [[3, 4, 5]]]
    assert [part.tolist() for part in halves(ids, (1, 6))] == [[[0, 1, 2]], [[3, 4, 5]]]


@pytest.mark.parametrize(
    ("spec", "why"),
    [("textures:?images=400&grid=1&patch=4&channels=3", "images of one patch"), (DATA.replace("400", "12"), "too few")],
)
def test_one_patch_or_few_images_have_none(spec: str, why: str) -> None:
    source = open_source(spec)
    found = scored(RandomTokenizer(k=5, patch_size=4).fit(source), source)
    assert all(math.isnan(value) for value in found.values.values())
    assert all(math.isnan(value.low) for value in found.results.values())
    assert all(why in found.notes[name] for name in found.values)


def test_transferability_needs_labels_and_view_retrieval_none(tmp_path: Path, noise: Callable[..., Any]) -> None:
    np.savez(tmp_path / "bare.npz", images=noise(128, 16, 16, 3))
    source = open_source(f"npz:{tmp_path / 'bare.npz'}")
    tokenizer = RandomTokenizer(k=5, patch_size=4).fit(source)
    with pytest.raises(DataError, match="has no labels, and transferability needs them"):
        score(tokenizer, source, scores=["transferability"])
    found = score(tokenizer, source, scores=["view_retrieval"]).results["view_retrieval"]
    assert len(found.parts) == PARTS
    assert all(0 <= part <= 1 for part in found.parts)


def test_tokens_of_the_class_find_the_class(source: Source) -> None:
    """A view is like those of all n images of its class, and finds its own in 1 of n: a class counts as one image."""
    found = scored(LabelTokenizer(patch_size=4).fit(source), source).results["view_retrieval"]
    assert found.parts == pytest.approx([4 / 50] * PARTS)


def test_an_image_that_stays_the_same_is_known_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random_view", lambda images, generator: to_float(images))
    assert scored(KMeansTokenizer(40, 4).fit(source), source).values["view_retrieval"] > 0.9


def test_random_views_are_of_the_images_drawn_and_the_same_again(source: Source) -> None:
    tokenizer = KMeansTokenizer(40, 4).fit(source)
    (plain,), drawn = sample(tokenizer, source, 100)
    views, same = sample(tokenizer, source, 100, views=2)
    assert torch.equal(drawn, same)
    assert [view.shape for view in views] == [(100, 16)] * 2
    assert not torch.equal(views[0], views[1])
    assert not torch.equal(views[0], plain)
    assert torch.equal(views, sample(tokenizer, source, 100, views=2)[0])


def test_parts_are_equal_and_of_two_images_at_least() -> None:
    assert split(torch.zeros(8 * 3 + 5, 4)) == [slice(3 * part, 3 * part + 3) for part in range(8)]
    for few in (torch.zeros(15, 4), torch.zeros(100, 1)):
        with pytest.raises(DataError):
            split(few)


def test_images_without_labels_tell_how_often_halves_are_found(source: Source) -> None:
    few, many = open_source(DATA.replace("400", "160")), open_source(DATA.replace("400", "800"))
    tokenizer = KMeansTokenizer(3, 4).fit(source)
    names = ["transferability", "bag_accuracy", "half_retrieval"]
    alone, beside, other = (
        score(tokenizer, of, scores=names, unlabelled=more).values
        for of, more in ((few, None), (few, many), (many, None))
    )
    assert beside["bag_accuracy"] == alone["bag_accuracy"]
    assert beside["half_retrieval"] == other["half_retrieval"] < alone["half_retrieval"]  # among more images
    assert beside["transferability"] > alone["transferability"]
    with pytest.raises(DataError, match="have shape"):
        score(tokenizer, few, unlabelled="textures:?images=40&grid=2&patch=4&channels=3")
