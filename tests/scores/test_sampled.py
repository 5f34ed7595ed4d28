"""Promise and outlook of tokens: those of the class, of the image, of nothing; sampling, halves, and what has none."""

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
from clustermim.scores import sampled as module
from clustermim.scores.sampled import (
    PARTS,
    Transferability,
    halves,
    sample,
    split,
    transferability,
    view_retrieval,
    with_interval,
)
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer

DATA = "textures:?images=400&grid=4&patch=4&channels=3&classes=4&noise=0.1"


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(DATA)


def test_tokens_of_the_class_promise_nearly_all(source: Source) -> None:
    found = transferability(LabelTokenizer(patch_size=4).fit(source), source)
    assert found.bag_accuracies == [1.0] * 8
    # 50 images of four classes: the other half of an image is one of a dozen alike
    assert sum(found.retrieval) / 8 == pytest.approx(4 / 50, abs=0.01)
    assert found.describe()["transferability"] == pytest.approx(0.92, abs=0.01)


def test_tokens_of_nothing_promise_nothing(source: Source) -> None:
    more = open_source(DATA.replace("400", "3200"))
    found = transferability(RandomTokenizer(k=5, patch_size=4).fit(source), more).describe()
    assert found["transferability"] == pytest.approx(0, abs=0.03)
    assert found["transferability_low"] < found["transferability"] < found["transferability_high"]
    assert found["half_retrieval"] < 0.02


def test_the_parts_are_a_product() -> None:
    found = Transferability([0.55, 0.1], [0.5, 0.2], 0.1)
    assert found.parts == pytest.approx([0.25, 0])
    assert Transferability([0.2, 0.3], [0.9, 0.0], 0.5).parts == [0, 0]  # less than chance is none, recognised or not
    assert found.describe()["bag_accuracy"] == pytest.approx(0.325)
    assert math.isnan(Transferability([1.0], [0.0], 1.0).parts[0])  # a single class


def test_rare_classes_weigh_as_much_as_frequent_ones(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that say little of the class promise little, whatever the share of the largest class."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(4096, generator=generator) < 0.1).long()
    found = []
    for strength in (0.0, 0.2, 0.4):
        said = torch.rand(4096, 16, generator=generator) < strength
        ids = torch.where(said, labels[:, None] * 5, 0) + torch.randint(5, (4096, 16), generator=generator)
        monkeypatch.setattr(module, "sample", lambda *_, drawn=ids: (drawn[None], torch.arange(4096)))
        monkeypatch.setattr(source, "labels", labels.numpy())
        found.append(
            transferability(RandomTokenizer(k=10, patch_size=4).fit(source), source).describe()["transferability"]
        )
    assert found[0] == pytest.approx(0, abs=0.05)
    assert found[0] < found[1] < found[2]


def test_so_many_images_at_random_and_the_same_again(source: Source) -> None:
    tokenizer = KMeansTokenizer(4, 4).fit(source)
    (ids,), drawn = sample(tokenizer, source, 100)
    assert drawn.tolist() == source.shuffle(0)[:100].tolist()
    assert ids.shape == (100, 16)
    expected = tokenizer(torch.stack([source[int(index)][0] for index in drawn]).float() / 255)
    assert torch.equal(ids, expected)
    assert transferability(tokenizer, source, 100) == transferability(tokenizer, source, 100)


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


@pytest.mark.parametrize("spec", ["textures:?images=400&grid=1&patch=4&channels=3", DATA.replace("400", "12")])
def test_one_patch_or_few_images_have_no_promise(spec: str) -> None:
    source = open_source(spec)
    found = transferability(RandomTokenizer(k=5, patch_size=4).fit(source), source).describe()
    assert all(
        math.isnan(found[name]) for name in ("transferability", "transferability_low", "bag_accuracy", "half_retrieval")
    )
    parts = view_retrieval(RandomTokenizer(k=5, patch_size=4).fit(source), source)
    assert len(parts) == PARTS
    assert all(math.isnan(part) for part in parts)


def test_a_promise_needs_labels_and_an_outlook_none(tmp_path: Path, noise: Callable[..., Any]) -> None:
    np.savez(tmp_path / "bare.npz", images=noise(128, 16, 16, 3))
    source = open_source(f"npz:{tmp_path / 'bare.npz'}")
    tokenizer = RandomTokenizer(k=5, patch_size=4).fit(source)
    with pytest.raises(DataError, match="has no labels, and a promise needs some"):
        transferability(tokenizer, source)
    assert all(0 <= part <= 1 for part in view_retrieval(tokenizer, source))


def test_tokens_of_the_class_know_the_class_again(source: Source) -> None:
    """A view is like those of all n images of its class, and finds its own in 1 of n: a class counts as one image."""
    assert view_retrieval(LabelTokenizer(patch_size=4).fit(source), source) == pytest.approx([4 / 50] * PARTS)


def test_tokens_of_nothing_know_nothing_again(source: Source) -> None:
    more = open_source(DATA.replace("400", "3200"))
    found = with_interval("view_retrieval", view_retrieval(RandomTokenizer(k=5, patch_size=4).fit(source), more))
    assert found["view_retrieval_low"] < found["view_retrieval"] < min(0.02, found["view_retrieval_high"])


def test_an_image_that_stays_the_same_is_known_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random_view", lambda images, generator: to_float(images))
    assert np.mean(view_retrieval(KMeansTokenizer(40, 4).fit(source), source)) > 0.9


def test_random_views_are_of_the_images_drawn_and_the_same_again(source: Source) -> None:
    tokenizer = KMeansTokenizer(40, 4).fit(source)
    (plain, *views), drawn = sample(tokenizer, source, 100, views=2)
    (alone,), same = sample(tokenizer, source, 100)
    assert torch.equal(plain, alone)
    assert torch.equal(drawn, same)
    assert [view.shape for view in views] == [(100, 16)] * 2
    assert not torch.equal(views[0], views[1])
    assert not torch.equal(views[0], plain)
    assert view_retrieval(tokenizer, source, 100) == view_retrieval(tokenizer, source, 100)


def test_parts_are_equal_and_of_two_images_at_least() -> None:
    assert split(torch.zeros(8 * 3 + 5, 4)) == [slice(3 * part, 3 * part + 3) for part in range(8)]
    assert split(torch.zeros(15, 4)) == split(torch.zeros(100, 1)) == []
