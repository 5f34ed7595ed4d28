"""Learned tokenizers: ids that no batch changes, files that give them back, and the losses that train them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from vector_quantize_pytorch import RandomProjectionQuantizer

from clustermim.data import Source, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, TeacherError, TokenizerError
from clustermim.patches import patchify
from clustermim.teachers import Teacher
from clustermim.tokenizers import LearnedTokenizer, RandomProjectionTokenizer, Tokenizer, load_tokenizer
from clustermim.tokenizers import learned as module
from clustermim.tokenizers.learning import (
    Discriminator,
    adaptive_weight,
    discriminator_loss,
    generator_loss,
    open_teachers,
    perceptual_loss,
)
from clustermim.tokenizers.quantizers import QUANTIZERS

SMALL: dict[str, Any] = {"k": 16, "patch_size": 4, "width": 12, "depth": 1}


def make(kind: str, **changes: Any) -> LearnedTokenizer:
    options = {} if kind in ("fsq", "lfq") else {"code_dim": 6}
    return LearnedTokenizer(kind, **{**SMALL, **changes}, quantizer=options)


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source("textures:?images=40&grid=3x5&patch=4")


@pytest.fixture(scope="module")
def images(source: Source) -> Tensor:
    return to_float(source.read(range(12)).images)


@pytest.mark.parametrize("kind", QUANTIZERS)
class TestEveryKind:
    def test_ids(self, kind: str, source: Source, images: Tensor) -> None:
        tokenizer = make(kind).initialize(source)
        ids = tokenizer(images)
        assert ids.shape == (12, 15)
        assert ids.dtype == torch.int64
        assert 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size
        assert len(ids.unique()) > 1
        assert torch.equal(ids, torch.cat([tokenizer(image[None]) for image in images]))
        assert torch.equal(ids.flip(0), tokenizer(images.flip(0)))

    def test_save_and_load(self, kind: str, source: Source, images: Tensor, tmp_path: Path) -> None:
        tokenizer = make(kind).initialize(source)
        tokenizer.save(tmp_path)
        loaded = load_tokenizer(tmp_path)
        assert isinstance(loaded, LearnedTokenizer)
        assert (loaded.kind, loaded.vocab_size) == (kind, tokenizer.vocab_size)
        assert loaded.config() == tokenizer.config()
        ids = tokenizer(images)
        assert torch.equal(loaded(images), ids)
        if kind != "vqkd":
            assert torch.equal(loaded.decode(ids.view(12, 3, 5)), tokenizer.decode(ids.view(12, 3, 5)))

    def test_the_same_seed_gives_the_same_networks(self, kind: str, source: Source) -> None:
        first, again, other = make(kind).initialize(source), make(kind), make(kind, seed=1).initialize(source)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        again.initialize(source).initialize(source)  # a second time forgets the first
        assert torch.equal(torch.get_rng_state(), before)
        for name, tensor in first.tensors().items():
            assert torch.equal(tensor, again.tensors()[name]), name
        assert not torch.equal(next(first.autoencoder.parameters()), next(other.autoencoder.parameters()))

    def test_pictures_of_tokens(self, kind: str, source: Source) -> None:
        tokenizer = make(kind).initialize(source)
        pictures = tokenizer.center_patches()
        if kind == "vqkd":  # its decoder knows no pixels
            assert tokenizer.decode is pictures is None
            return
        assert pictures.shape == (tokenizer.vocab_size, 3, 4, 4)
        assert 0 <= float(pictures.min()) <= float(pictures.max()) <= 1
        alike = tokenizer.decode(torch.full((1, 7, 7), 3))
        assert torch.allclose(alike[0, :, 12:16, 12:16], pictures[3], atol=1e-6)


@pytest.mark.parametrize(("channels", "height", "width", "patch"), [(1, 8, 8, 2), (5, 12, 6, 6), (3, 10, 5, 5)])
def test_any_channels_and_shapes(channels: int, height: int, width: int, patch: int, noise: Any) -> None:
    source = ArraySource("noise", noise(30, channels, height, width))
    tokenizer = make("vq", patch_size=patch).initialize(source)
    ids = tokenizer(torch.rand(2, channels, height, width))
    grid = (height // patch, width // patch)
    assert ids.shape == (2, grid[0] * grid[1])
    assert tokenizer.decode(ids.view(2, *grid)).shape == (2, channels, height, width)
    assert tokenizer(torch.rand(1, channels, 3 * patch, 2 * patch)).shape == (1, 6)  # not the size it was fitted on


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_doubtful_ids_are_decided_in_float64(
    kind: str, source: Source, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make(kind).initialize(source)
    weights = {name: tensor.double() for name, tensor in tokenizer.autoencoder.state_dict().items()}
    exact = tokenizer.quantizer.assign(functional_call(tokenizer.autoencoder, weights, (images.double(),)))[0]
    seen = []
    monkeypatch.setattr(
        module, "functional_call", lambda *given: seen.append(len(given[2][0])) or functional_call(*given)
    )
    monkeypatch.setattr(module, "CLEAR", float("inf"))
    assert torch.equal(tokenizer(images), exact.flatten(1))
    assert seen == [12]
    monkeypatch.setattr(module, "CLEAR", 0.0)
    assert torch.equal(tokenizer(images), exact.flatten(1))
    assert seen == [12]


def test_large_codebooks_are_searched_in_parts(source: Source, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, drawn = make("vq").initialize(source), RandomProjectionTokenizer(16, 4).fit(source)
    ids, others = tokenizer(images), drawn(images)
    monkeypatch.setattr(module, "SCORES", 5 * 15 * 16)  # five images at a time
    assert torch.equal(tokenizer(images), ids)
    assert torch.equal(drawn(images), others)


def test_the_first_codebook_is_made_of_the_images(source: Source, images: Tensor) -> None:
    tokenizer = make("vq").initialize(source)
    features = tokenizer.autoencoder(images).detach().movedim(1, -1).flatten(0, 2)  # (n, D)
    codes = tokenizer.quantizer.lookup(tokenizer(images).view(12, 3, 5)).movedim(1, -1).flatten(0, 2)
    spread = (features - features.mean(0)).square().sum(1).mean()
    assert float((features - codes).square().sum(1).mean() / spread) < 0.5


def test_autocast_changes_no_id() -> None:
    data = "textures:?images=200&grid=8&patch=4&noise=0.2"
    images = to_float(open_source(data).read(range(200)).images)
    tokenizer = LearnedTokenizer("vq", k=64, patch_size=4).initialize(open_source(data))
    with torch.autocast("cpu", torch.bfloat16):
        ids = tokenizer(images)
    assert torch.equal(ids, tokenizer(images))


def test_what_cannot_be_fitted(source: Source, noise: Any) -> None:
    with pytest.raises(DataError, match="do not divide into patches of 5"):
        make("vq", patch_size=5).initialize(source)
    few = ArraySource("few", noise(2, 3, 8, 8))
    with pytest.raises(TokenizerError, match="--k 16 is more than the 8 patches of few: lower it"):
        make("vq").initialize(few)
    with pytest.raises(ConfigError, match="--width 0 is too small"):
        make("vq", width=0)
    with pytest.raises(TokenizerError, match="not fitted"):
        make("vq")(torch.rand(1, 3, 12, 20))


def test_weights_of_another_shape_are_refused(source: Source, tmp_path: Path) -> None:
    made = make("vq").initialize(source)
    made.width = 13
    made.save(tmp_path)
    with pytest.raises(TokenizerError, match="holds a vq tokenizer that this version cannot read"):
        load_tokenizer(tmp_path)


class TestRandomProjection:
    def test_ids_are_the_librarys(self, source: Source, images: Tensor) -> None:
        tokenizer = RandomProjectionTokenizer(50, 4, code_dim=8, seed=3).fit(source)
        torch.manual_seed(3)
        library = RandomProjectionQuantizer(dim=48, codebook_size=50, codebook_dim=8)
        assert torch.equal(tokenizer(images), library(patchify(images, 4)))

    def test_brightness_and_contrast_do_not_matter(self, source: Source, images: Tensor) -> None:
        tokenizer: Tokenizer = RandomProjectionTokenizer(50, 4).fit(source)
        ids = tokenizer(images)
        assert len(ids.unique()) > 10
        assert float((tokenizer(0.2 + 0.7 * images) == ids).float().mean()) > 0.95

    def test_save_and_load(self, source: Source, images: Tensor, tmp_path: Path) -> None:
        tokenizer = RandomProjectionTokenizer(9, 4, seed=2).fit(source)
        tokenizer.save(tmp_path)
        loaded = load_tokenizer(tmp_path)
        assert loaded.config() == tokenizer.config()
        assert torch.equal(loaded(images), tokenizer(images))
        assert torch.equal(torch.cat([loaded(image[None]) for image in images]), loaded(images))


class Blur(Teacher):
    """Means of neighbourhoods, times a weight."""

    spec, dim, channels = "blur", 3, 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])[:, None, None], requires_grad=False)

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        return F.avg_pool2d(images, 2) * self.weight


class TestLosses:
    def test_each_side_is_reached_by_its_own_loss_only(self) -> None:
        torch.manual_seed(0)
        discriminator, layer = Discriminator(3, 4), torch.nn.Conv2d(3, 3, 1)
        images = torch.rand(2, 3, 8, 8)
        discriminator_loss(discriminator, images, layer(images)).backward()
        for parameter in discriminator.parameters():
            assert parameter.grad is not None
            # the bias of the score makes real and made ones alike more real: nothing is left of its gradient
            assert bool(parameter.grad.any()) == (parameter is not discriminator.score.bias)
        assert all(p.grad is None for p in layer.parameters())
        discriminator.zero_grad()
        generator_loss(discriminator, layer(images)).backward()
        assert all(p.grad is None for p in discriminator.parameters())
        assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in layer.parameters())

    def test_hinge_losses_at_known_scores(self) -> None:
        scores = torch.nn.Flatten(1)  # the images are their own scores
        real, made = torch.tensor([[2.0, 0.5]]), torch.tensor([[-2.0, 0.5]])
        assert float(discriminator_loss(scores, real, made)) == pytest.approx((0.25 + 0.75) / 2)
        assert float(generator_loss(scores, made)) == pytest.approx(0.75)

    def test_the_adaptive_weight_is_a_ratio_of_gradients(self) -> None:
        torch.manual_seed(0)
        last, x = torch.randn(4, 3, requires_grad=True), torch.randn(7, 4)
        rebuilt = (x @ last).tanh()
        ours, theirs = rebuilt.square().mean(), rebuilt.sum()
        weight = adaptive_weight(ours, theirs, last)
        slope = 1 - rebuilt.detach().square()  # of tanh; the chain rule by hand
        expected = (x.t() @ (2 * rebuilt.detach() / 21 * slope)).norm() / ((x.t() @ slope).norm() + 1e-4)
        assert float(weight) == pytest.approx(float(expected), rel=1e-5)
        assert not weight.requires_grad
        assert float(adaptive_weight(1e6 * ours, 0 * theirs, last)) == 1e4
        (ours + theirs).backward()  # the graph is still there

    def test_perceptual_loss(self) -> None:
        torch.manual_seed(0)
        images, rebuilt = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4).requires_grad_()
        teacher = Blur()
        assert float(perceptual_loss([teacher], images, images)) == pytest.approx(0, abs=1e-6)
        loss = perceptual_loss([teacher, teacher], rebuilt, images)
        cosine = F.cosine_similarity(teacher.features(rebuilt), teacher.features(images), dim=1)
        assert float(loss.detach()) == pytest.approx(float((2 - 2 * cosine).mean().detach()), rel=1e-5)
        loss.backward()
        assert rebuilt.grad is not None
        assert bool(rebuilt.grad.abs().sum() > 0)
        assert teacher.weight.grad is None

    def test_teachers_are_frozen_and_must_take_the_images(self) -> None:
        (teacher,) = open_teachers(["random:micro?image=8&patch=4"], (3, 8, 8))
        assert not teacher.training
        assert not any(parameter.requires_grad for parameter in teacher.parameters())
        images = torch.rand(1, 3, 8, 8, requires_grad=True)
        teacher.features(images).square().sum().backward()
        assert images.grad is not None
        with pytest.raises(TeacherError, match="takes 3-channel images, these have 1"):
            open_teachers(["random:micro?image=8&patch=4"], (1, 8, 8))


def test_constant_channels_do_not_divide_by_zero() -> None:
    source = ArraySource("grey", np.full((20, 3, 8, 8), 100, dtype=np.uint8))
    tokenizer = make("fsq").initialize(source)
    assert bool(tokenizer.decode(tokenizer(torch.rand(1, 3, 8, 8)).view(1, 2, 2)).isfinite().all())
