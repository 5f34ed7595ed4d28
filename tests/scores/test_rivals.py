"""Known scores on request, and every row of the table where there is little to see: a value or a reason, no crash."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clustermim.cli import main
from clustermim.data import open_source
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError
from clustermim.patches import patchify
from clustermim.scores import SCORES, score
from clustermim.tokenizers import KMeansTokenizer, RandomTokenizer, Tokenizer

RIVALS = [name for name, row in SCORES.items() if row.on_request]
OF_IDS = [name for name in RIVALS if name != "psnr"]  # that tokens without pictures have


class Levels(Tokenizer):
    """So many levels of brightness, in a codebook that may have more tokens."""

    kind = "levels"

    def __init__(self, used: int, vocab_size: int, patch_size: int = 2) -> None:
        super().__init__()
        self.used, self.vocab_size, self.patch_size, self.channels_ = used, vocab_size, patch_size, 1

    def fit(self, source: object) -> Levels:
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        return (patchify(images, self.patch_size).mean(-1) * self.used).long().clamp(max=self.used - 1)


def drawn(images: int, grid: tuple[int, int], classes: int, seed: int = 0) -> ArraySource:
    """Patches of random brightness; without labels where there are no classes."""
    generator = np.random.default_rng(seed)
    pixels = np.kron(generator.integers(256, size=(images, 1, *grid)), np.ones((2, 2))).astype(np.uint8)
    labels = generator.integers(classes, size=images) if classes else None
    return ArraySource("drawn", pixels, labels, tuple(map(str, range(classes))))


@given(
    images=st.integers(1, 40),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    classes=st.integers(0, 4),
    used=st.integers(1, 12),
    unused=st.integers(0, 5),
    seed=st.integers(0, 2**16),
)
@example(images=30, grid=(3, 3), classes=1, used=5, unused=0, seed=0)  # one class
@example(images=1, grid=(3, 3), classes=2, used=5, unused=0, seed=0)  # one image
@example(images=30, grid=(3, 3), classes=3, used=1, unused=0, seed=0)  # one token
@example(images=30, grid=(3, 3), classes=3, used=5, unused=1, seed=0)  # a token that is never used
@example(images=20, grid=(4, 4), classes=3, used=100, unused=0, seed=0)  # more tokens than images
@example(images=30, grid=(1, 1), classes=3, used=5, unused=0, seed=0)  # one patch
@example(images=40, grid=(3, 3), classes=0, used=5, unused=0, seed=0)  # no labels
@settings(max_examples=30, deadline=None)
def test_every_row_has_a_value_or_a_reason(
    images: int, grid: tuple[int, int], classes: int, used: int, unused: int, seed: int
) -> None:
    source = drawn(images, grid, classes, seed)
    found = score(Levels(used, used + unused), source, rivals=True)
    assert set(found.values) == {name for name, row in SCORES.items() if classes or not row.needs_labels}
    for name, value in found.values.items():
        assert math.isfinite(value) or found.notes[name], name
        assert not math.isinf(value), name
    assert found.title in str(found)


@pytest.mark.parametrize("unused", [1, 50])
def test_tokens_that_are_never_used_change_nothing(unused: int) -> None:
    """But SelfCluster, which is told the dimension; and these have no pictures, so no PSNR."""
    source = drawn(60, (3, 3), 3)
    names = [name for name in OF_IDS if name != "self_cluster"]
    few, many = (score(Levels(7, size), source, scores=names).values for size in (7, 7 + unused))
    assert all(math.isfinite(value) for value in few.values())
    assert many == pytest.approx(few)


def test_they_are_computed_when_asked_for() -> None:
    source = drawn(60, (3, 3), 3)
    usual = score(Levels(7, 7), source)
    assert not set(RIVALS) & set(usual.values)
    assert len(RIVALS) == 15
    more = score(Levels(7, 7), source, rivals=True)
    assert list(more.values) == list(SCORES)
    assert {name: more.values[name] for name in usual.values} == usual.values
    assert score(Levels(7, 7), source, scores=["rankme"]).values == {"rankme": more.values["rankme"]}
    with pytest.raises(ConfigError, match="no score 'rank_me'; did you mean rankme"):
        score(Levels(7, 7), source, scores=["rank_me"])


def test_the_reasons_are_said() -> None:
    one_class = score(Levels(7, 7), drawn(60, (3, 3), 1), rivals=True).notes
    assert {one_class[name] for name in ("nleep", "logme", "h_score", "gbc", "logistic_accuracy")} == {
        "the images are of one class only"
    }
    one_token = score(Levels(1, 1), drawn(60, (3, 3), 3), rivals=True).notes
    assert "the same tokens" in one_token["nesum"]
    assert "one token only" in one_token["neighbour_mi"]
    assert "two tokens" in one_token["self_cluster"]


def test_each_image_is_tokenized_once_and_some_in_several_views(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    before = Levels.ids
    monkeypatch.setattr(Levels, "ids", lambda self, images, labels: seen.append(len(images)) or before(self, images, 0))
    monkeypatch.setattr("clustermim.scores.collect.VIEWED", 20)
    score(Levels(7, 7), drawn(100, (3, 3), 3), rivals=True, images=50)
    assert sum(seen) == 100 + 2 * 50 + 8 * 20


def test_a_large_codebook_takes_little_memory() -> None:
    generator = np.random.default_rng(0)
    source = ArraySource(
        "noise", generator.integers(256, size=(80, 3, 16, 16), dtype=np.uint8), np.arange(80) % 4, tuple("abcd")
    )
    tokenizer = RandomTokenizer(65_536, patch_size=4).fit(source)
    score(tokenizer, source, scores=OF_IDS)  # what is imported does not count
    tracemalloc.start()
    found = score(tokenizer, source, scores=OF_IDS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8  # bags of 640 views would take 300 MB
    assert all(math.isfinite(value) for value in found.values.values())


def test_what_takes_too_much_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clustermim.scores.base.MEMORY", 1e4)
    found = score(Levels(30, 30), drawn(60, (3, 3), 3), rivals=True)
    for name in ("rankme", "nesum", "logme", "h_score", "lidar"):
        assert "would take" in found.notes[name]
    monkeypatch.setattr("clustermim.scores.table.ANNOUNCED", 5e4)
    source = drawn(60, (1, 1), 0)
    score(Levels(30, 30), source)
    assert not capsys.readouterr().err.count("takes up to")
    score(Levels(30, 30), source, rivals=True)
    assert "scoring 60 images takes up to" in capsys.readouterr().err


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = "textures:?images=100&grid=3&patch=4&classes=3"
    KMeansTokenizer(5, 4).fit(open_source(data)).save(tmp_path / "km")
    folder = str(tmp_path / "km")
    assert main(["score", folder, "--data", data, "--out", str(tmp_path / "usual")]) == 0
    assert "rankme" not in capsys.readouterr().out
    assert main(["score", folder, "--data", data, "--out", str(tmp_path / "all"), "--rivals", "true"]) == 0
    assert "RankMe: effective rank" in capsys.readouterr().out
    results = json.loads((tmp_path / "all" / "summary.json").read_text())["results"]
    assert all(math.isfinite(results[name]) for name in RIVALS if name != "alpha_req")  # five tokens: too few to fit
    assert "rivals: true" in (tmp_path / "all" / "config.yaml").read_text()


def test_they_do_not_depend_on_the_order_of_tokens() -> None:
    """But that of an untrained encoder, whose embeddings are random."""
    source = drawn(80, (3, 3), 3)
    names = torch.randperm(9, generator=torch.Generator().manual_seed(0))

    class Renamed(Levels):
        def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
            return names[super().ids(images, labels)]

    found, renamed = (score(kind(9, 9), source, scores=OF_IDS).values for kind in (Levels, Renamed))
    assert renamed.pop("untrained_accuracy") == pytest.approx(found.pop("untrained_accuracy"), abs=0.2)
    assert renamed == pytest.approx(found, rel=1e-6)
