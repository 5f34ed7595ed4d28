"""Scores of whole tokenizers on whole sources, where the truth is known."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.data import Source, open_source
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError
from clustermim.scores import SCORES, Score, TCASVariant, Tokens, alpha, collect, tcas
from clustermim.scores import score as score_tokenizer
from clustermim.scores.table import trust
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer, Tokenizer, tokenize

TEXTURES = "textures:test?images=1000&grid=6&classes={s}&points={n}&shared={m}&noise=0&jitter=0"


def score(tokenizer: Tokenizer, source: Source, variant: TCASVariant = TCASVariant(), **options: Any) -> dict[str, Any]:
    """All scores, as a summary holds them."""
    return score_tokenizer(tokenizer, source, variant=variant, **options).to_dict()


def test_labels_score_zero() -> None:
    source = open_source("textures:?images=300&grid=3")
    scores = score(LabelTokenizer(patch_size=8).fit(source), source)
    assert scores["tcas"] == 0
    assert scores["debiased"] == pytest.approx(0, abs=1e-12)
    assert scores["adjusted"] == 1
    assert scores["alpha"] == 0
    assert scores["sum_sq"] == pytest.approx(4)  # one eigenvalue 1 a class
    assert scores["nmi"] == pytest.approx(1)


@pytest.mark.parametrize("data", ["textures:?images=600&grid=4&noise=0", "digits/test"])
@pytest.mark.parametrize("k", [10, 100])
def test_random_tokens_know_nothing(data: str, k: int) -> None:
    source = open_source(data)
    scores = score(RandomTokenizer(k, patch_size=2 if "digits" in data else 8).fit(source), source)
    assert scores["adjusted_low"] < 0 < scores["adjusted_high"]
    assert scores["debiased"] == pytest.approx(scores["chance"], abs=0.01)
    assert scores["sum_sq"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("s", "n", "m"), [(2, 10, 2), (3, 6, 1), (4, 8, 2), (3, 5, 0)])
def test_prototypes_follow_the_toy_model(s: int, n: int, m: int) -> None:
    """Tokens that are the prototypes are the identity tokenizer of the toy model: γ = θ = 1 − s·t/2, t = m/n.

    There α = (s−1)(1−γ)/s under the class that generated each image, which is what data shows. The
    view of an image is the image here, so its class is known and Σλ² = tr G² = 1 + (s−1)γ²; the toy model's view is one
    patch, which multiplies each eigenvalue by θ once more.
    """
    source = open_source(TEXTURES.format(s=s, n=n, m=m))
    prototypes = s * n - m * s * (s - 1) // 2
    tokenizer = KMeansTokenizer(k=prototypes, patch_size=8).fit(source)
    scores = score(tokenizer, source)
    gamma = 1 - s * (m / n) / 2
    assert tokenizer.inertia_ < 1e-4
    assert scores["used"] == prototypes
    assert scores["alpha"] == pytest.approx((s - 1) * (1 - gamma) / s, abs=0.01)
    assert scores["sum_sq"] == pytest.approx(1 + (s - 1) * gamma**2, rel=0.015)


def test_numbers_come_from_the_counts() -> None:
    source = open_source("textures:?images=200&grid=3&noise=0.3")
    tokenizer = KMeansTokenizer(k=15, patch_size=8).fit(source)
    scores = score(tokenizer, source, permutations=3, seed=5)
    table = np.zeros((15, 4))
    for batch, ids in tokenize(tokenizer, source):
        assert batch.labels is not None
        np.add.at(table, (ids.numpy(), batch.labels.numpy()[:, None]), 1)
    assert scores["tcas"] == pytest.approx(tcas(table))
    assert scores["alpha"] == pytest.approx(alpha(table))
    assert scores["chance"] == pytest.approx(tcas(np.ones((15, 1)) * table.sum(0)))
    assert (scores["images"], scores["patches"]) == (200, 1800)
    assert scores == score(tokenizer, source, permutations=3, seed=5)
    assert scores["null"] != score(tokenizer, source, permutations=3, seed=6)["null"]


def test_large_codebooks_are_not_flattered() -> None:
    source = open_source("digits/test")
    scores = score(RandomTokenizer(2000, patch_size=2).fit(source), source)
    assert scores["tcas"] < 0.55  # looks far better than chance …
    assert scores["chance"] > 0.8
    assert abs(scores["adjusted"]) < 0.02  # … but is not
    assert "Trust `adjusted`" in trust(scores)
    assert "Trust none of these: only " in trust(scores | {"adjusted": math.nan})


def test_the_chance_beside_the_debiased_score_is_of_its_reading() -> None:
    source = open_source("textures:?images=300&grid=3")
    tokenizer = KMeansTokenizer(k=5, patch_size=8).fit(source)
    plain, printed = (score(tokenizer, source, variant) for variant in (TCASVariant(), TCASVariant(diag="norm")))
    assert plain["chance"] == plain["plain_chance"] == printed["plain_chance"] != printed["chance"]
    assert printed["debiased"] == plain["debiased"]
    assert f"against chance {plain['chance']:.4f}" in trust(printed)


def test_a_single_patch_an_image_has_no_pairs() -> None:
    source = open_source("textures:?images=200&grid=1")
    scores = score(KMeansTokenizer(k=5, patch_size=8).fit(source), source)
    assert math.isnan(scores["sum_sq"])
    assert 0 <= scores["tcas"] <= 1


def test_no_permutations() -> None:
    source = open_source("textures:?images=100&grid=2")
    tokenizer = RandomTokenizer(4, patch_size=8).fit(source)
    assert math.isnan(score(tokenizer, source, permutations=0)["adjusted"])
    with pytest.raises(ConfigError, match="--permutations -1"):
        score(tokenizer, source, permutations=-1)


def bare(images: int = 60) -> ArraySource:
    """Noise without labels."""
    pixels = np.random.default_rng(0).integers(256, size=(images, 3, 16, 16), dtype=np.uint8)
    return ArraySource("pixels", pixels)


def test_without_labels_there_are_the_scores_that_need_none() -> None:
    source = bare()
    found = score_tokenizer(RandomTokenizer(4, patch_size=4).fit(source), source)
    assert set(found.values) == {name for name, row in SCORES.items() if not row.needs_labels and not row.on_request}
    assert all(math.isfinite(value) for value in found.values.values())
    assert (found.to_dict()["images"], found.to_dict()["used"]) == (60, 4)
    assert "Not without labels: transferability, bag_accuracy, debiased" in str(found)
    assert "Choose by `view_retrieval`" in str(found)
    with pytest.raises(DataError, match="pixels has no labels, and alpha needs them"):
        score_tokenizer(RandomTokenizer(4, patch_size=4).fit(source), source, scores=["alpha"])
    with pytest.raises(DataError, match="has no labels, and a labels tokenizer needs them"):
        score_tokenizer(LabelTokenizer(4).fit(open_source("textures:?images=9&channels=3")), source)


@pytest.mark.parametrize("images", [1, 2])
def test_one_image_has_no_scores_but_reasons(images: int) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(images, 3, 16, 16), dtype=np.uint8)
    source = ArraySource("one", pixels, np.zeros(images, dtype=np.int64), ("a",))
    found = score_tokenizer(RandomTokenizer(4, patch_size=4).fit(source), source)
    for name, value in found.values.items():
        assert math.isfinite(value) or name in found.notes or name == "null"
    assert "too few" in found.notes["transferability"]
    assert found.values["adjusted"] == 0  # of one class
    assert "No transferability, bag_accuracy" in str(found)


def test_a_score_is_one_function_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Score("largest_token", False, False, "the largest id", lambda tokens: float(tokens.ids[0].max()))
    monkeypatch.setitem(SCORES, "largest_token", row)
    found = score_tokenizer(RandomTokenizer(7, patch_size=4).fit(bare()), bare())
    assert found.values["largest_token"] == 6
    assert ["largest_token", "6.0000", "", "lower", "the largest id"] in found.table().rows


def test_scores_by_name_read_no_more_than_they_need() -> None:
    source = open_source("textures:?images=400&grid=4&patch=4")
    tokenizer = KMeansTokenizer(k=5, patch_size=4).fit(source)
    found = score_tokenizer(tokenizer, source, scores=["view_retrieval"], images=100)
    assert list(found.values) == ["view_retrieval"]
    assert found.facts["images"] == 100
    assert repr(found) == f"Scores(view_retrieval={found.values['view_retrieval']:.4f})"
    with pytest.raises(ConfigError, match="no score 'view_retrieva'; did you mean view_retrieval"):
        score_tokenizer(tokenizer, source, scores=["view_retrieva"])


def test_each_image_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two views of the 100 sampled images are other images."""
    source = open_source("textures:?images=500&grid=4&patch=4&classes=4")
    tokenizer = KMeansTokenizer(k=5, patch_size=4).fit(source)
    plain, seen = {image.tobytes() for image in source.read(range(500)).images.numpy()}, []

    def ids(self: KMeansTokenizer, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        seen.extend((images * 255).round().to(torch.uint8).numpy())
        return before(self, images, labels)

    before = KMeansTokenizer.ids
    monkeypatch.setattr(KMeansTokenizer, "ids", ids)
    whole = score_tokenizer(tokenizer, source, images=100).to_dict()
    assert whole["images"] == 500
    assert sum(image.tobytes() in plain for image in seen) == 500
    assert len(seen) == 500 + 2 * 100


@pytest.mark.parametrize("labels", [(0, 999_999), (0, 1)])
def test_only_classes_that_occur_count(labels: tuple[int, int]) -> None:
    source = bare(120)
    source.labels = np.random.default_rng(1).choice(labels, 120)
    source.class_names = tuple(map(str, range(max(labels) + 1)))
    found = score(RandomTokenizer(50, patch_size=4).fit(source), source)
    source.labels, source.class_names = (source.labels > 0).astype(np.int64), ("a", "b")
    assert found == score(RandomTokenizer(50, patch_size=4).fit(source), source)


def test_a_large_codebook_and_many_classes_take_little_memory(capsys: pytest.CaptureFixture[str]) -> None:
    source = bare(80)
    source.labels = np.random.default_rng(1).integers(1000, size=80)
    source.class_names = tuple(map(str, range(1000)))
    tokenizer = RandomTokenizer(65_536, patch_size=4).fit(source)
    tracemalloc.start()
    found = score(tokenizer, source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e8  # dense tables would take 8 GB
    assert found["used"] <= 80 * 16
    assert all(math.isfinite(found[name]) for name, row in SCORES.items() if name != "debiased" and not row.on_request)


def test_memory_is_announced_and_bounded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("textures:?images=400&grid=4&patch=4&classes=4")
    tokenizer = RandomTokenizer(3000, patch_size=4).fit(source)
    monkeypatch.setattr("clustermim.scores.base.MEMORY", 1e5)
    found = score_tokenizer(tokenizer, source)
    assert "scoring 400 images takes up to 0.5 GB of memory" in capsys.readouterr().err
    assert math.isnan(found.values["tcas"])
    assert "tokens and 4 classes would take" in found.notes["tcas"]
    assert "No debiased, adjusted, tcas" in str(found)


def test_images_that_cannot_be_read_do_not_count(tmp_path: Path, encode: object, noise: object) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(20):
            data = encode(noise(16, 16, 3, seed=i))  # type: ignore[operator]
            (tmp_path / label / f"{i}.png").write_bytes(data if i % 4 else data[:100])
    source = open_source(f"folder:{tmp_path}?on_bad_image=skip&size=16")
    scores = score(RandomTokenizer(4, patch_size=8).fit(source), source)
    assert (scores["images"], scores["patches"]) == (30, 120)
    assert torch.isfinite(torch.tensor(scores["adjusted"]))


@pytest.mark.parametrize("groups", [None, [3], [0, 5, 19]])
def test_tables_of_groups_are_those_of_their_images(groups: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("digits/test")
    tokens = Tokens(RandomTokenizer(k=10, patch_size=4).fit("digits/train"), source, TCASVariant())
    kept = tokens.table(groups)
    expected = np.zeros_like(kept)
    for row, image in zip(*tokens.ids, strict=True):
        if groups is None or tokens.groups[image] in groups:
            np.add.at(expected[:, source.labels[image]], row, 1)
    np.testing.assert_array_equal(kept, expected)
    monkeypatch.setattr(collect, "GROUPED", 0)  # too many cells to keep
    np.testing.assert_array_equal(tokens.table(groups), expected)
