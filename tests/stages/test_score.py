"""Scores of whole tokenizers on whole sources, where the truth is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from clustermim.data import open_source
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError
from clustermim.scores import TCASVariant, alpha, tcas, tcas_chance
from clustermim.stages.score import score, trust
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer, tokenize

TEXTURES = "textures:test?images=1000&grid=6&classes={s}&points={n}&shared={m}&noise=0&jitter=0"


def test_labels_score_zero() -> None:
    source = open_source("textures:?images=300&grid=3")
    scores = score(LabelTokenizer(patch_size=8).fit(source), source, TCASVariant())
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
    scores = score(RandomTokenizer(k, patch_size=2 if "digits" in data else 8).fit(source), source, TCASVariant())
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
    scores = score(tokenizer, source, TCASVariant())
    gamma = 1 - s * (m / n) / 2
    assert tokenizer.inertia_ < 1e-4
    assert scores["used"] == prototypes
    assert scores["alpha"] == pytest.approx((s - 1) * (1 - gamma) / s, abs=0.01)
    assert scores["sum_sq"] == pytest.approx(1 + (s - 1) * gamma**2, rel=0.015)
    assert scores["class_sum_sq"] == pytest.approx(1 + (s - 1) * gamma**2, rel=0.015)


def test_numbers_come_from_the_counts() -> None:
    source = open_source("textures:?images=200&grid=3&noise=0.3")
    tokenizer = KMeansTokenizer(k=15, patch_size=8).fit(source)
    scores = score(tokenizer, source, TCASVariant(), permutations=3, seed=5)
    table = np.zeros((15, 4))
    for batch, ids in tokenize(tokenizer, source):
        assert batch.labels is not None
        np.add.at(table, (ids.numpy(), batch.labels.numpy()[:, None]), 1)
    assert scores["tcas"] == pytest.approx(tcas(table))
    assert scores["alpha"] == pytest.approx(alpha(table))
    assert scores["chance"] == pytest.approx(tcas_chance(table.sum(0), 15))
    assert (scores["images"], scores["patches"]) == (200, 1800)
    assert scores == score(tokenizer, source, TCASVariant(), permutations=3, seed=5)
    assert scores["null"] != score(tokenizer, source, TCASVariant(), permutations=3, seed=6)["null"]


def test_large_codebooks_are_not_flattered() -> None:
    source = open_source("digits/test")
    scores = score(RandomTokenizer(2000, patch_size=2).fit(source), source, TCASVariant())
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
    scores = score(KMeansTokenizer(k=5, patch_size=8).fit(source), source, TCASVariant())
    assert math.isnan(scores["sum_sq"])
    assert 0 <= scores["tcas"] <= 1


def test_no_permutations() -> None:
    source = open_source("textures:?images=100&grid=2")
    tokenizer = RandomTokenizer(4, patch_size=8).fit(source)
    assert math.isnan(score(tokenizer, source, TCASVariant(), permutations=0)["adjusted"])
    with pytest.raises(ConfigError, match="--permutations -1"):
        score(tokenizer, source, TCASVariant(), permutations=-1)


def test_no_labels(noise: object) -> None:
    source = ArraySource("pixels", np.zeros((5, 3, 8, 8), dtype=np.uint8))
    with pytest.raises(DataError, match="pixels has no labels"):
        score(RandomTokenizer(4, patch_size=8).fit(source), source, TCASVariant())


def test_images_that_cannot_be_read_do_not_count(tmp_path: Path, encode: object, noise: object) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(20):
            data = encode(noise(16, 16, 3, seed=i))  # type: ignore[operator]
            (tmp_path / label / f"{i}.png").write_bytes(data if i % 4 else data[:100])
    source = open_source(f"folder:{tmp_path}?on_bad_image=skip&size=16")
    scores = score(RandomTokenizer(4, patch_size=8).fit(source), source, TCASVariant())
    assert (scores["images"], scores["patches"]) == (30, 120)
    assert torch.isfinite(torch.tensor(scores["adjusted"]))
