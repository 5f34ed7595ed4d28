"""What is predicted of a patch, and its loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, TokenizerError, UserError
from clustermim.patches import check_channels, patchify, select
from clustermim.pretraining import pretrain
from clustermim.targets import (
    TARGETS,
    FeatureTarget,
    HOGTarget,
    PixelTarget,
    Target,
    TokenTarget,
    VectorTarget,
    make_target,
)
from clustermim.targets.kinds import TargetOptions
from clustermim.teachers import open_teacher
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer
from pictures import pictures


def test_kinds() -> None:
    assert all(target.kind == kind for kind, target in TARGETS.items())
    assert set(TARGETS) == {"pixels", "hog", "features", "tokens", "multi-tokens", "vectors"}


@pytest.mark.parametrize("tail", [(), (1,), (5,), (2, 3)])
def test_select(tail: tuple[int, ...]) -> None:
    values = torch.rand(3, 7, *tail)
    indices = torch.tensor([[6, 0, 3], [1, 2, 1], [5, 4, 0]])
    expected = torch.stack([values[row, places] for row, places in enumerate(indices)])
    assert torch.equal(select(values, indices), expected)
    assert select(values, indices[:, :0]).shape == (3, 0, *tail)


# pixels


def test_raw_pixels_are_those_of_the_normalised_image() -> None:
    images = pictures(2, 3, 8, 12)
    target = PixelTarget(4, 3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.1, 0.5))
    values = target(images)
    assert values.shape == (2, 6, target.dim) == (2, 6, 48)
    # the pixel at row 1, column 2 of the patch in row 1, column 2 of the grid
    expected = (images[1, :, 5, 10] - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.1, 0.5])
    torch.testing.assert_close(values[1, 5].reshape(4, 4, 3)[1, 2], expected)


def test_a_channel_that_never_varies() -> None:
    target = PixelTarget(2, 2, mean=(0.5, 1.0), std=(0.5, 0.0))
    assert torch.equal(target(torch.ones(1, 2, 2, 2)), torch.tensor([1.0, 0.0]).repeat(4)[None, None])


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_normalised_patches(channels: int) -> None:
    images = pictures(2, channels, 12, 8)
    mean, std = [0.4] * channels, [0.3] * channels
    values = PixelTarget(4, channels, mean, std, normalize=True)(images).numpy()
    patches = patchify((images - 0.4) / 0.3, 4).numpy().astype(np.float64)
    for image in range(2):
        for patch in range(6):
            pixels = patches[image, patch]
            variance = ((pixels - pixels.mean()) ** 2).sum() / (len(pixels) - 1)
            expected = (pixels - pixels.mean()) / math.sqrt(variance + 1e-6)
            np.testing.assert_allclose(values[image, patch], expected, atol=1e-5)


def test_a_flat_patch_is_zero() -> None:
    values = PixelTarget(4, 1, [0.5], [0.2], normalize=True)(torch.full((1, 1, 4, 4), 0.7))
    assert values.abs().max() < 1e-3


def test_pixel_loss_is_the_mean_over_masked_patches() -> None:
    target = PixelTarget(2, 1, [0.5], [0.25])
    images, indices = pictures(2, 1, 4, 4), torch.tensor([[0, 3], [2, 1]])
    values, prediction = target(images), torch.rand(2, 4, 4)
    loss = target.loss(select(prediction, indices), select(values, indices))
    mask = torch.zeros(2, 4).scatter_(1, indices, 1.0)
    expected = ((prediction - values).square().mean(dim=-1) * mask).sum() / mask.sum()  # as MAE writes it
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("normalize", [False, True])
def test_absolute_errors_of_pixels(normalize: bool) -> None:
    squared, absolute = (PixelTarget(2, 1, [0.5], [0.25], normalize, error) for error in (None, "l1"))
    values, prediction = absolute(pictures(2, 1, 4, 4)), torch.randn(2, 4, 4, requires_grad=True)
    assert torch.equal(values, squared(pictures(2, 1, 4, 4)))
    expected = sum(abs(a - b) for a, b in zip(prediction.flatten().tolist(), values.flatten().tolist(), strict=True))
    assert absolute.loss(prediction, values).item() == pytest.approx(expected / 32)
    absolute.loss(prediction, values).backward()
    assert prediction.grad is not None
    torch.testing.assert_close(prediction.grad, (prediction.detach() - values).sign() / 32)
    assert absolute.loss(values + 2, values).item() == pytest.approx(2)
    assert squared.loss(values + 2, values).item() == pytest.approx(4)


@pytest.mark.parametrize("normalize", [False, True])
def test_predictions_back_to_pixels(normalize: bool) -> None:
    images = pictures(2, 3, 8, 4)
    target = PixelTarget(4, 3, (0.5, 0.4, 0.3), (0.2, 0.1, 0.5), normalize)
    torch.testing.assert_close(target.to_pixels(target(images), images), patchify(images, 4))
    assert target.to_pixels(100 * target(images), images).max() <= 1


def test_pixels_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="3 channels need as many means and stds, not 1 and 3"):
        PixelTarget(4, 3, [0.5], [0.5, 0.5, 0.5])
    with pytest.raises(ConfigError, match="one value"):
        PixelTarget(1, 1, [0.5], [0.5], normalize=True)
    with pytest.raises(DataError, match="for 3-channel images, these have 1"):
        PixelTarget(4, 3, [0.5] * 3, [0.5] * 3)(torch.zeros(1, 1, 8, 8))
    with pytest.raises(DataError, match="do not divide"):
        PixelTarget(4, 3, [0.5] * 3, [0.5] * 3)(torch.zeros(1, 3, 8, 6))


# tokens


@pytest.fixture
def source(noise: Any) -> ArraySource:
    return ArraySource("mine", noise(12, 3, 8, 12), np.arange(12) % 4)


def test_tokens_of_any_tokenizer(source: ArraySource) -> None:
    batch = source.read(range(5))
    images = batch.images / 255
    for tokenizer in (KMeansTokenizer(k=7, patch_size=4), RandomTokenizer(k=7, patch_size=4)):
        target = TokenTarget(tokenizer.fit(source))
        assert (target.dim, target.patch_size, target.channels, target.needs_labels) == (7, 4, 3, False)
        assert torch.equal(target(images, batch.labels), tokenizer(images))
        assert torch.equal(target(images), tokenizer(images))


def test_tokens_of_the_oracle(source: ArraySource) -> None:
    batch = source.read(range(5))
    target = TokenTarget(LabelTokenizer(patch_size=4).fit(source))
    assert target.needs_labels
    assert batch.labels is not None
    assert torch.equal(target(batch.images / 255, batch.labels), batch.labels[:, None].expand(5, 6))
    with pytest.raises(TokenizerError, match="needs the labels"):
        target(batch.images / 255)


def test_token_loss_by_its_formula(source: ArraySource) -> None:
    target = TokenTarget(RandomTokenizer(k=6, patch_size=4).fit(source))
    ids, prediction = torch.randint(6, (2, 3)), torch.randn(2, 3, 6, requires_grad=True)
    expected = -(F.one_hot(ids, 6) * prediction.log_softmax(dim=-1)).sum(dim=-1).mean()
    loss = target.loss(prediction, ids)
    torch.testing.assert_close(loss, expected)
    assert loss.requires_grad
    assert target.loss(prediction.bfloat16(), ids).dtype == torch.float32


def test_tokens_that_cannot_be() -> None:
    with pytest.raises(TokenizerError, match="not fitted"):
        TokenTarget(LabelTokenizer(patch_size=4))


def test_targets_have_no_gradient() -> None:
    images = pictures(1, 1, 8, 8).requires_grad_()
    for target in (PixelTarget(4, 1, [0.5], [0.2]), PixelTarget(4, 1, [0.5], [0.2], True), HOGTarget(4, 1)):
        assert not target(images).requires_grad
        assert not list(target.parameters())


# tokens of several tokenizers


def test_several_tokens_side_by_side(source: ArraySource) -> None:
    tokenizers = [KMeansTokenizer(k=7, patch_size=4).fit(source), RandomTokenizer(k=3, patch_size=4).fit(source)]
    target = make_target(tokenizers, source)
    assert (target.kind, target.dim, target.patch_size, target.channels) == ("multi-tokens", 10, 4, 3)
    images = source.read(range(5)).images / 255
    ids = target(images)
    assert torch.equal(ids, torch.stack([tokenizer(images) for tokenizer in tokenizers], dim=2))
    scores = torch.randn(5, 6, 10, requires_grad=True)
    alone = [
        TokenTarget(one).loss(part, ids[..., place])
        for place, (one, part) in enumerate(zip(tokenizers, scores.split([7, 3], dim=2), strict=True))
    ]
    torch.testing.assert_close(target.loss(scores, ids), sum(alone) / 2)
    assert target.version() != make_target(tokenizers[::-1], source).version()


def test_several_tokens_that_cannot_be(source: ArraySource) -> None:
    one, other = (RandomTokenizer(k=6, patch_size=size).fit(source) for size in (4, 2))
    with pytest.raises(UserError, match="needs two --tokenizers or more"):
        make_target([one], source)
    with pytest.raises(UserError, match="needs two --tokenizers or more"):
        make_target("multi-tokens", source)
    with pytest.raises(UserError, match="different patches: 2 pixels and 3 channels, 4 pixels and 3 channels"):
        make_target([one, other], source)
    with pytest.raises(UserError, match="labels are for --target tokens"):
        make_target([one, LabelTokenizer(patch_size=4).fit(source)], source)
    with pytest.raises(UserError, match="--tokenizers is for --target multi-tokens, not tokens"):
        make_target(one, source, tokenizers=["a", "b"])


# vectors


@pytest.mark.parametrize("space", ["pixel", "pixel-norm", "pixel-white"])
def test_the_nearest_centre_of_a_vector_is_its_token(source: ArraySource, space: Any, tmp_path: Path) -> None:
    tokenizer = KMeansTokenizer(k=7, patch_size=4, space=space).fit(source)
    tokenizer.save(tmp_path / "km")
    images = source.read(range(5)).images / 255
    target = make_target("vectors", source, tokenizer=str(tmp_path / "km"))
    vectors = target(images)
    assert vectors.shape == (5, 6, target.dim)
    assert torch.equal(torch.cdist(vectors, tokenizer.centers_).argmin(-1), tokenizer(images))
    torch.testing.assert_close(target.loss(vectors + 2, vectors), torch.tensor(4.0))
    turned = make_target("vectors", source, tokenizer=str(tmp_path / "km"), vector_loss="cosine")(images)
    torch.testing.assert_close(turned.norm(dim=-1), torch.full((5, 6), target.dim**0.5))
    torch.testing.assert_close(F.cosine_similarity(turned, vectors, dim=-1), torch.ones(5, 6))
    assert target.version() == TokenTarget(tokenizer).version()


def test_vectors_are_of_k_means_only(source: ArraySource) -> None:
    with pytest.raises(UserError, match="--target vectors needs a k-means tokenizer, and this is random"):
        VectorTarget(RandomTokenizer(k=6, patch_size=4).fit(source))


# a target of whatever a user has


SOURCE = "textures:?images=16&grid=4&patch=4"


def test_make_target_of_names_and_objects(tmp_path: Path) -> None:
    source = open_source(SOURCE)
    tokenizer = KMeansTokenizer(5, 4, iterations=2).fit(source)
    tokenizer.save(tmp_path / "km")
    for given in (tokenizer, tmp_path / "km", str(tmp_path / "km")):
        target = make_target(given, source)
        assert isinstance(target, TokenTarget)
        assert (target.dim, target.patch_size) == (5, 4)
        assert make_target(target, source) is target
    pixels = make_target("pixels", source, pixel_loss="l1")
    assert isinstance(pixels, PixelTarget)
    assert (pixels.error, pixels.patch_size) == ("l1", 4)
    assert isinstance(make_target("hog", source, patch_size=8), HOGTarget)
    for teacher in ("hog:", open_teacher("hog:")):
        features = make_target(teacher, source, patch_size=8)
        assert isinstance(features, FeatureTarget)
        assert (features.patch_size, features.dim) == (8, 27)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (
            "pixel",
            {},
            "there is no target 'pixel', nor such a folder of a tokenizer or an encoder; did you mean pixels",
        ),
        ("tokens", {}, "--target tokens and vectors need --tokenizer"),
        ("vectors", {}, "--target tokens and vectors need --tokenizer"),
        ("tokens", {"vector_loss": "cosine"}, "--vector-loss is for --target vectors, not tokens"),
        ("features", {}, "--target features needs --teacher"),
        ("hog", {"pixel_loss": "l1"}, "--pixel-loss is for --target pixels, not hog"),
        (5, {}, "a teacher is a text such as hf:NAME or run:FOLDER, or an encoder, not 5"),
        (RandomTokenizer(5, 8), {}, "this random tokenizer is not fitted"),
        (
            RandomTokenizer(5, 8).fit(SOURCE),
            {"patch_size": 4},
            "is for patches of 8 pixels and 3 channels, and the model",
        ),
        (RandomTokenizer(5, 8).fit(SOURCE), {"teacher": "hog:"}, "--teacher is for --target features, not tokens"),
        (PixelTarget(4, 1, [0.5], [0.5]), {}, "for 1-channel images, these have 3"),
        (LabelTokenizer(4).fit("digits"), {}, "is for patches of 4 pixels and 1 channels"),
    ],
)
def test_targets_that_cannot_be(target: object, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_target(target, open_source(SOURCE), **options)


class CentrePixel(Target):
    """All that a new target has to have: the value of one pixel of a patch."""

    kind = "centre"

    def __init__(self, patch_size: int, channels: int) -> None:
        super().__init__()
        self.patch_size, self.channels, self.dim = patch_size, channels, channels

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> CentrePixel:
        return cls(patch_size or 4, source.shape[0])

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        check_channels(images, self.channels, "the target is for")
        middle = self.patch_size // 2
        return (
            images[:, :, middle :: self.patch_size, middle :: self.patch_size].flatten(2).transpose(1, 2)
        )  # (B, N, C)


def test_a_new_target_is_a_class_and_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "centre", CentrePixel)
    source = open_source(SOURCE)
    target = make_target("centre", source, patch_size=4)
    images = to_float(source.read(range(8)).images)
    assert torch.equal(target(images)[0, 5], images[0, :, 6, 6])
    encoder = pretrain(source, "centre", epochs=1, batch_size=16, device="cpu")
    again = pretrain(source, target, epochs=1, batch_size=16, device="cpu")
    assert encoder.history[-1]["loss"] == again.history[-1]["loss"] > 0
