"""What every tokenizer promises, on every kind there is."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from transformers import FlavaImageCodebook, FlavaImageCodebookConfig

from clustermim.data import Source, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.patches import patchify
from clustermim.tokenizers import (
    TOKENIZERS,
    ExternalTokenizer,
    KMeansTokenizer,
    LabelTokenizer,
    LearnedTokenizer,
    PrototypeTokenizer,
    RandomProjectionTokenizer,
    RandomTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenize,
)
from clustermim.tokenizers.quantizers import QUANTIZERS


@cache
def published() -> str:
    """The folder of a small network, as its library saves it."""
    folder = mkdtemp()
    config = FlavaImageCodebookConfig(hidden_size=4, vocab_size=9, num_blocks_per_group=1)
    FlavaImageCodebook(config).save_pretrained(folder)
    return folder


def make(kind: str) -> Tokenizer:
    if kind == "external":
        return ExternalTokenizer(f"hf-flava:{published()}", 8)
    if kind in QUANTIZERS:
        options = {} if kind in ("fsq", "lfq") else {"code_dim": 6}
        return LearnedTokenizer(kind, k=16, patch_size=8, width=12, depth=1, quantizer=options)
    made: dict[str, Tokenizer] = {
        "kmeans": KMeansTokenizer(k=9, patch_size=8),
        "kmeans of features": KMeansTokenizer(9, 8, "features", teacher="random:micro?image=24x40&patch=8"),
        "random": RandomTokenizer(k=9, patch_size=8, seed=2),
        "labels": LabelTokenizer(patch_size=8),
        "random-projection": RandomProjectionTokenizer(k=9, patch_size=8),
        "toy": PrototypeTokenizer("class"),
    }
    return made[kind]


def fit(kind: str, source: Source) -> Tokenizer:
    """A fitted tokenizer; a learned one after a short training."""
    tokenizer = make(kind)
    if not isinstance(tokenizer, LearnedTokenizer):
        return tokenizer.fit(source)
    teacher = ["random:micro?image=24x40&patch=8"] if kind in ("peco", "vqkd") else None
    return tokenizer.fit(source, epochs=1, batch_size=30, device="cpu", teacher=teacher)


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source("textures:?images=60&grid=3x5")


@pytest.mark.parametrize("kind", [*TOKENIZERS, "kmeans of features"])
class TestEveryTokenizer:
    def test_ids(self, kind: str, source: Source) -> None:
        tokenizer = fit(kind, source)
        batch = source.read(range(20))
        images = to_float(batch.images).requires_grad_()
        ids = tokenizer(images, batch.labels)
        assert ids.shape == (20, 15)
        assert ids.dtype == torch.int64
        assert not ids.requires_grad
        assert 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size
        assert batch.labels is not None
        one_by_one = [tokenizer(images[i : i + 1], batch.labels[i : i + 1]) for i in range(20)]
        assert torch.equal(ids, torch.cat(one_by_one))

    def test_save_and_load(self, kind: str, source: Source, tmp_path: Path) -> None:
        tokenizer = fit(kind, source)
        tokenizer.save(tmp_path)
        loaded = load_tokenizer(tmp_path)
        assert type(loaded) is type(tokenizer)
        assert loaded.config() == tokenizer.config()
        assert loaded.fitted() == tokenizer.fitted()
        for (_, ids), (_, again) in zip(tokenize(tokenizer, source), tokenize(loaded, source), strict=True):
            assert torch.equal(ids, again)

    def test_same_bytes_when_fitted_twice(self, kind: str, source: Source, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            fit(kind, source).save(tmp_path / name)
        for file in (tmp_path / "a").iterdir():
            assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()

    def test_refuses_images_it_cannot_read(self, kind: str, source: Source) -> None:
        labels = torch.zeros(1, dtype=torch.long)
        with pytest.raises(TokenizerError, match="not fitted"):
            make(kind)(torch.rand(1, 3, 24, 24), labels)
        tokenizer = fit(kind, source)
        with pytest.raises(TokenizerError, match=r"fitted on 3-channel images, these have 1: add \?channels=3"):
            tokenizer(torch.rand(1, 1, 24, 24), labels)
        with pytest.raises(TokenizerError, match=r"float images of shape \(B, C, H, W\), not torch.uint8"):
            tokenizer(torch.zeros(1, 3, 24, 24, dtype=torch.uint8), labels)
        for value in (torch.nan, torch.inf, -torch.inf):
            with pytest.raises(TokenizerError, match="NaN or infinite"):
                tokenizer(torch.full((1, 3, 24, 24), value), labels)
        for value, about in (
            (1.5, "divide bytes by 255"),
            (-2.0, "they look normalised"),
            (255.0, "divide bytes by 255"),
        ):
            told = rf"images in \[0, 1\], and these .*{about}.*tokenizer.for_normalized\(mean, std\)"
            with pytest.raises(TokenizerError, match=told):
                tokenizer(torch.full((1, 3, 24, 24), value), labels)
        with pytest.raises(TokenizerError, match=r"float images of shape .*, not ndarray"):
            tokenizer(np.zeros((1, 3, 24, 24)), labels)
        with pytest.raises(DataError, match="do not divide into patches of 8"):
            tokenizer(torch.rand(1, 3, 24, 20), labels)

    def test_normalised_images(self, kind: str, source: Source) -> None:
        mean, std = torch.tensor([0.48, 0.45, 0.4]), torch.tensor([0.22, 0.2, 0.25])
        batch = source.read(range(8))
        images, tokenizer = to_float(batch.images), fit(kind, source)
        normalised = (images - mean[:, None, None]) / std[:, None, None]
        ids = tokenizer.for_normalized(mean.tolist(), std.tolist())(normalised, batch.labels)
        assert (ids == tokenizer(images, batch.labels)).float().mean() > 0.95  # but for ties within rounding
        with torch.autocast("cpu", torch.bfloat16):  # a training of mixed precision changes no id
            mixed = tokenizer.for_normalized(mean.tolist(), std.tolist())(normalised, batch.labels)
        assert torch.equal(mixed, ids)
        with pytest.raises(TokenizerError, match="takes 3 channels"):
            tokenizer.for_normalized([0.5], [0.2])

    def test_repr(self, kind: str, source: Source) -> None:
        assert repr(make(kind)).endswith(", not fitted)")
        assert "fitted" in repr(fit(kind, source))
        assert "not fitted" not in repr(fit(kind, source))
        assert len(repr(fit(kind, source)).splitlines()) == 1


def test_edited_settings_are_noticed(source: Source, tmp_path: Path) -> None:
    fit("kmeans", source).save(tmp_path)
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    record["config"]["space"] = "pixel-norm"
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(TokenizerError, match=r"tokenizer.json was changed after it was saved"):
        load_tokenizer(tmp_path)


def test_what_is_no_tokenizer(source: Source, tmp_path: Path) -> None:
    tokenizer = RandomTokenizer(9, 8)
    assert load_tokenizer(tokenizer) is tokenizer
    with pytest.raises(TokenizerError, match="a tokenizer is an object, or the folder of one, not 5"):
        load_tokenizer(5)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="not fitted"):
        tokenizer.save(tmp_path / "some" / "where")
    tokenizer.fit(source).save(tmp_path / "some" / "where")  # makes the folder and its parents
    assert repr(load_tokenizer(str(tmp_path / "some" / "where"))) == "RandomTokenizer(k=9, patch_size=8, fitted)"


class Brightness(Tokenizer):
    """All that a new tokenizer has to have: the brightness of a patch in so many steps."""

    kind = "brightness"

    def __init__(self, k: int = 4, patch_size: int = 8) -> None:
        super().__init__()
        self.k = self.vocab_size = k
        self.patch_size = patch_size

    def fit(self, source: object) -> Brightness:
        images = open_source(source)
        self.register_buffer("highest_", to_float(images.read(range(len(images))).images).max())
        self.channels_ = images.shape[0]
        return self

    def ids(self, images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        means = patchify(images, self.patch_size).mean(-1) / self.highest_  # (B, N)
        return means.mul(self.k).long().clamp(0, self.k - 1)


def test_a_new_tokenizer_is_a_class_and_an_entry(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOKENIZERS, "brightness", Brightness)
    tokenizer = Brightness(5).fit("textures:?images=60&grid=3x5")
    tokenizer.save(tmp_path / "new")
    loaded, images = load_tokenizer(tmp_path / "new"), to_float(source.read(range(9)).images)
    assert type(loaded) is Brightness
    assert repr(loaded) == "Brightness(k=5, patch_size=8, fitted)"
    assert torch.equal(loaded(images), tokenizer(images))
    assert len(loaded(images).unique()) > 1


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"there is no tokenizer folder .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_random_ids_are_even_and_unrelated_to_the_patch(source: Source) -> None:
    flat = torch.full((400, 3, 24, 40), 0.5)
    flat[:, 0, 0, 0] = torch.arange(400) % 20 / 20  # one pixel differs
    flat[:, 1, 0, 0] = torch.arange(400) // 20 / 20
    ids = RandomTokenizer(k=4, patch_size=8).fit(source)(flat)
    counts = torch.bincount(ids.flatten(), minlength=4)
    assert (counts - 1500).abs().max() < 200
    assert not torch.equal(RandomTokenizer(k=4, patch_size=8, seed=1).fit(source)(flat), ids)
    with pytest.raises(ConfigError, match="--k 0 is too small"):
        RandomTokenizer(k=0, patch_size=8).fit(source)


def test_labels_are_the_ids_and_are_needed(source: Source, tmp_path: Path) -> None:
    tokenizer = LabelTokenizer(patch_size=8).fit(source)
    assert tokenizer.vocab_size == 4
    for batch, ids in tokenize(tokenizer, source):
        assert batch.labels is not None
        assert torch.equal(ids, batch.labels[:, None].expand(-1, 15))
    with pytest.raises(TokenizerError, match="needs the labels"):
        tokenizer(torch.rand(1, 3, 24, 24))
    with pytest.raises(TokenizerError, match="label 4 is not among the 4 classes"):
        tokenizer(torch.rand(1, 3, 24, 24), torch.tensor([4]))
    unlabelled = ArraySource("pixels", np.zeros((4, 3, 24, 24), dtype=np.uint8))
    with pytest.raises(DataError, match="pixels has no labels"):
        LabelTokenizer(patch_size=8).fit(unlabelled)
    with pytest.raises(DataError, match="pixels has no labels, and a labels tokenizer needs them"):
        next(tokenize(tokenizer, unlabelled))
