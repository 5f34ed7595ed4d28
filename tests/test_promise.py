"""The promise of tokens: those of the class, of the image, of nothing; sampling, halves, and what has no promise."""

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

from clustermim import promise as module
from clustermim.data import Source, open_source
from clustermim.errors import DataError
from clustermim.promise import Promise, halves, promise, sample
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer

DATA = "textures:?images=400&grid=4&patch=4&channels=3&classes=4&noise=0.1"


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(DATA)


def test_tokens_of_the_class_promise_nearly_all(source: Source) -> None:
    found = promise(LabelTokenizer(patch_size=4).fit(source), source)
    assert found.bag == [1.0] * 8
    # 50 images of four classes: the other half of an image is one of a dozen alike
    assert sum(found.recognised) / 8 == pytest.approx(4 / 50, abs=0.01)
    assert found.describe()["promise"] == pytest.approx(0.92, abs=0.01)


def test_tokens_of_nothing_promise_nothing(source: Source) -> None:
    more = open_source(DATA.replace("400", "3200"))
    found = promise(RandomTokenizer(k=5, patch_size=4).fit(source), more).describe()
    assert found["promise"] == pytest.approx(0, abs=0.03)
    assert found["promise_low"] < found["promise"] < found["promise_high"]
    assert found["recognised"] < 0.02


def test_the_parts_are_a_product() -> None:
    found = Promise([0.55, 0.1], [0.5, 0.2], 0.1)
    assert found.parts == pytest.approx([0.25, 0])
    assert Promise([0.2, 0.3], [0.9, 0.0], 0.5).parts == [0, 0]  # less than chance is none, recognised or not
    assert found.describe()["bag"] == pytest.approx(0.325)
    assert math.isnan(Promise([1.0], [0.0], 1.0).parts[0])  # a single class


def test_rare_classes_weigh_as_much_as_frequent_ones(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that say little of the class promise little, whatever the share of the largest class."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(4096, generator=generator) < 0.1).long()
    found = []
    for strength in (0.0, 0.2, 0.4):
        said = torch.rand(4096, 16, generator=generator) < strength
        ids = torch.where(said, labels[:, None] * 5, 0) + torch.randint(5, (4096, 16), generator=generator)
        monkeypatch.setattr(module, "sample", lambda *_, drawn=ids: (drawn, labels))
        found.append(promise(RandomTokenizer(k=10, patch_size=4).fit(source), source).describe()["promise"])
    assert found[0] == pytest.approx(0, abs=0.05)
    assert found[0] < found[1] < found[2]


def test_so_many_images_at_random_and_the_same_again(source: Source) -> None:
    tokenizer = KMeansTokenizer(4, 4).fit(source)
    ids, labels = sample(tokenizer, source, 100)
    drawn = source.shuffle(0)[:100]
    assert ids.shape == (100, 16)
    assert source.labels is not None
    assert labels.tolist() == source.labels[drawn].tolist()
    expected = tokenizer(torch.stack([source[int(index)][0] for index in drawn]).float() / 255)
    assert torch.equal(ids, expected)
    assert promise(tokenizer, source, 100) == promise(tokenizer, source, 100)


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
        ids, labels = sample(tokenizer, source, 40)
        drawn = np.random.default_rng(0).permutation(len(source))[:40]
        expected = [tokenizer(source[int(index)][0][None].float() / 255)[0].tolist() for index in drawn]
        assert ids.tolist() == expected
        assert source.labels is not None
        assert labels.tolist() == source.labels[drawn].tolist()


def test_halves_of_wide_narrow_and_odd_grids() -> None:
    ids = torch.arange(6)[None]
    assert [part.tolist() for part in halves(ids, (2, 3))] == [[[0, 3]], [[2, 5]]]
    assert [part.tolist() for part in halves(ids, (6, 1))] == [[[0, 1, 2]], [[3, 4, 5]]]
    assert [part.tolist() for part in halves(ids, (1, 6))] == [[[0, 1, 2]], [[3, 4, 5]]]


@pytest.mark.parametrize("spec", ["textures:?images=400&grid=1&patch=4&channels=3", DATA.replace("400", "12")])
def test_one_patch_or_few_images_have_no_promise(spec: str) -> None:
    source = open_source(spec)
    found = promise(RandomTokenizer(k=5, patch_size=4).fit(source), source).describe()
    assert all(math.isnan(found[name]) for name in ("promise", "promise_low", "bag", "recognised"))


def test_labels_are_needed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = RandomTokenizer(k=5, patch_size=4).fit(source)
    monkeypatch.setattr(source, "labels", None)
    with pytest.raises(DataError, match="has no labels, and a promise needs some"):
        promise(tokenizer, source)
