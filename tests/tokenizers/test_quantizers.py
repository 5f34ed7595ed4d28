"""The quantizers: ids and values are the library's, margins tell how clearly ids were decided, schedules are right."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clustermim.errors import ConfigError
from clustermim.tokenizers.learned import CLEAR
from clustermim.tokenizers.quantizers import (
    LEVELS,
    GumbelQuantizer,
    Quantizer,
    ScalarQuantizer,
    SignQuantizer,
    VectorQuantizer,
    anneal,
    nearest_levels,
)

MADE: dict[str, Any] = {
    "vq": lambda: VectorQuantizer(16, code_dim=6),
    "cosine": lambda: VectorQuantizer(16, code_dim=6, cosine=True),
    "dvae": lambda: GumbelQuantizer(16, code_dim=6),
    "fsq": lambda: ScalarQuantizer(40),
    "lfq": lambda: SignQuantizer(16),
}


def make(name: str) -> tuple[Quantizer, torch.Tensor]:
    """A quantizer that has seen some features, and other features (3, D, 4, 5) for it."""
    torch.manual_seed(0)
    quantizer = MADE[name]()
    quantizer(torch.randn(8, quantizer.width, 4, 5), 0.0)
    return quantizer, torch.randn(3, quantizer.width, 4, 5)


@pytest.mark.parametrize("name", MADE)
def test_training_gives_values_ids_and_a_gradient(name: str) -> None:
    quantizer, features = make(name)
    features.requires_grad_()
    values, ids, losses = quantizer(features, 0.5)
    assert values.shape == (3, quantizer.width, 4, 5)
    assert ids.shape == (3, 4, 5)
    assert ids.dtype == torch.int64
    assert 0 <= int(ids.min()) <= int(ids.max()) < quantizer.vocab_size
    weights = torch.randn(values.shape)
    (gradient,) = torch.autograd.grad((values * weights).sum() + sum(losses.values(), torch.zeros(())), features)
    assert bool(gradient.abs().sum() > 0)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", ["vq", "cosine", "fsq", "lfq"])
def test_ids_and_values_are_the_librarys(name: str) -> None:
    quantizer, features = make(name)
    quantizer.eval()
    values, ids, _ = quantizer(features, 1.0)
    found, _ = quantizer.assign(features)
    assert torch.equal(found, ids)
    assert torch.allclose(quantizer.lookup(ids), values, atol=1e-6)
    assert len(found.unique()) > 4


def test_a_dvae_takes_the_largest_logit() -> None:
    quantizer, features = make("dvae")
    assert isinstance(quantizer, GumbelQuantizer)
    ids, _ = quantizer.assign(features)
    assert torch.equal(ids, quantizer.logits(features.movedim(1, -1)).argmax(-1))
    assert torch.equal(ids, quantizer(features, 1.0).ids)
    assert torch.equal(quantizer.lookup(ids)[1, :, 2, 3], quantizer.codebook[ids[1, 2, 3]])


@pytest.mark.parametrize("name", MADE)
def test_the_margin_is_nothing_only_where_two_tokens_are_equally_good(name: str) -> None:
    quantizer, features = make(name)
    before, clear = quantizer.assign(features)
    assert bool((clear >= 0).all())
    assert float(clear.detach().max()) > 1e-3
    other = features + torch.randn(features.shape)
    low, high = torch.zeros(3, 1, 4, 5), torch.ones(3, 1, 4, 5)
    changed = quantizer.assign(other)[0] != before
    for _ in range(40):  # to the place on the way where the id changes
        middle = (low + high) / 2
        same = (quantizer.assign(features + middle * (other - features))[0] == before)[:, None]
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    edge = quantizer.assign(features + low * (other - features))[1]
    assert bool(changed.any())
    assert float(edge[changed].detach().max()) < CLEAR


def test_a_vector_that_nothing_comes_to_is_revived() -> None:
    torch.manual_seed(0)
    for dead_code_threshold, least in ((0.0, 0), (0.1, 12)):
        quantizer = VectorQuantizer(16, code_dim=4, decay=0.5, dead_code_threshold=dead_code_threshold)
        near = 0.01 * torch.randn(16, 4, 4, 4)
        quantizer(near, 0.0)  # the codebook is where features no longer are
        for _ in range(30):
            quantizer(5 + torch.randn(16, 4, 4, 4), 0.0)
        used = len(quantizer.assign(5 + torch.randn(64, 4, 4, 4))[0].unique())
        assert used > least
        if not dead_code_threshold:
            assert used < 12


def test_the_temperature_falls_and_the_divergence_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def spy(logits: torch.Tensor, tau: float) -> torch.Tensor:
        used.append(tau)
        return logits.softmax(-1)

    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", spy)
    quantizer = GumbelQuantizer(8, code_dim=8, temperature=1 / 16, kl_weight=2.0, kl_warmup=0.2)
    quantizer.started.fill_(True)
    torch.nn.init.eye_(quantizer.logits.weight)  # features are logits
    torch.nn.init.zeros_(quantizer.logits.bias)
    sure = torch.full((1, 8, 2, 2), -50.0)
    sure[:, 3] = 50.0
    kl = [float(quantizer(sure, progress).losses["kl"].detach()) for progress in (0.0, 0.1, 0.2, 0.5, 1.0)]
    assert used == pytest.approx([1.0, anneal(0.1, 1, 1 / 16, 1), anneal(0.2, 1, 1 / 16, 1), 17 / 32, 1 / 16])
    assert kl == pytest.approx([0.0, math.log(8), 2 * math.log(8), 2 * math.log(8), 2 * math.log(8)], abs=1e-5)
    even = quantizer(torch.zeros(1, 8, 2, 2), 1.0).losses["kl"]
    assert float(even.detach()) == pytest.approx(0, abs=1e-6)


def test_a_dvae_starts_as_soft_k_means() -> None:
    torch.manual_seed(0)
    quantizer = GumbelQuantizer(16, code_dim=6)
    features = torch.randn(8, 6, 4, 5)
    quantizer(features, 0.0)
    ids, _ = quantizer.assign(features)
    assert len(ids.unique()) == 16
    x = features.movedim(1, -1).flatten(0, 2)  # (n, D)
    distances = torch.cdist(x, quantizer.codebook.detach())
    assert torch.equal(ids.flatten(), distances.argmin(1))
    expected = -(distances**2) * 3 / distances.amin(1).square().mean()
    logits = quantizer.logits(x).detach()
    assert torch.allclose(logits - logits[:, :1], expected - expected[:, :1], atol=1e-3)
    before = quantizer.codebook.detach().clone()
    quantizer(features + 1, 0.0)
    assert torch.equal(quantizer.codebook.detach(), before)  # once


@given(progress=st.floats(0, 1), share=st.floats(0, 1))
def test_annealing_stays_between_its_ends_and_arrives(progress: float, share: float) -> None:
    value = anneal(progress, 1.0, 0.25, share)
    assert 0.25 - 1e-12 <= value <= 1.0 + 1e-12
    assert value == pytest.approx(0.25) if progress >= share else value > 0.25 - 1e-12


@given(k=st.integers(3, 20_000))
def test_levels_come_near_to_any_size(k: int) -> None:
    levels = nearest_levels(k)
    assert set(levels) <= set(LEVELS)
    assert abs(math.log(math.prod(levels) / k)) < math.log(1.16)


def test_known_levels() -> None:
    assert nearest_levels(2) == (3,)
    assert nearest_levels(8) == (8,)
    assert nearest_levels(512) == (8, 8, 8)
    assert nearest_levels(1000) == (8, 5, 5, 5)
    assert ScalarQuantizer(50).vocab_size == 49


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: SignQuantizer(100), r"--k 100 is not a power of two, and lfq writes a token in bits: take 128"),
        (lambda: SignQuantizer(1), "--k 1 is too small: 2 at least"),
        (lambda: ScalarQuantizer(1), "--k 1 is too small: 2 at least"),
        (lambda: VectorQuantizer(0, code_dim=8), "--k 0 is too small: 2 at least"),
        (lambda: VectorQuantizer(8, code_dim=0), "--code-dim 0 is too small: 1 at least"),
        (lambda: GumbelQuantizer(8, code_dim=4, temperature=0.0), "--temperature 0.0 is not above 0"),
    ],
)
def test_sizes_that_cannot_be(make_one: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_one()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("decay", 1.5, "--decay 1.5 is not in 0 ≤ … < 1"),
        ("decay", -3.0, "--decay -3 is not in 0 ≤ … < 1"),
        ("dead_code_threshold", -1.0, "--dead-code-threshold -1.0 is too small: 0 at least"),
        ("commitment", -5.0, "--commitment -5.0 is too small: 0 at least"),
    ],
)
def test_numbers_that_cannot_be(name: str, value: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VectorQuantizer(16, code_dim=4, **{name: value})  # type: ignore[arg-type]
