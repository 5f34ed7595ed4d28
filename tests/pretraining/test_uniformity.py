"""The uniformity term of U-MAE, against loops over pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clustermim.errors import ConfigError
from clustermim.models.masking import draw_from, random_mask
from clustermim.models.mim import MaskedAutoencoder
from clustermim.models.vit import ViT
from clustermim.pretraining.task import check_uniformity, mean_similarity


def slow(features: Tensor) -> Tensor:
    """The same in a double loop over pairs."""
    terms = []
    for i, first in enumerate(features):
        for j, second in enumerate(features):
            if i != j:
                terms.append(((first @ second) / (first.norm() * second.norm())) ** 2)
    return torch.stack(terms).mean()


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 99))
def test_value_and_gradient_equal_a_loop_over_pairs(batch: int, width: int, seed: int) -> None:
    draws = torch.randn(batch, width, generator=torch.Generator().manual_seed(seed))
    fast, loop = draws.clone().requires_grad_(), draws.clone().double().requires_grad_()
    mean_similarity(fast).backward()
    slow(loop).backward()
    torch.testing.assert_close(mean_similarity(fast).double(), slow(loop), atol=1e-5, rtol=1e-4)
    assert fast.grad is not None
    assert loop.grad is not None
    scale = 1 / draws.norm(dim=1, keepdim=True)  # a short vector has a steep gradient
    torch.testing.assert_close(fast.grad.double() / scale, loop.grad / scale, atol=1e-4, rtol=1e-3)


def test_least_and_most() -> None:
    assert mean_similarity(torch.eye(4)).item() == 0
    assert mean_similarity(torch.ones(4, 3) * torch.tensor([[1.0], [2.0], [-3.0], [0.5]])).item() == pytest.approx(1)
    assert mean_similarity(torch.ones(4, 3).bfloat16()).dtype == torch.float32


def test_its_expectation_does_not_depend_on_the_batch() -> None:
    """The mean over all ways to halve a batch is the value of the whole."""
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    parts = torch.stack([mean_similarity(features[list(pair)]) for pair in pairs])
    torch.testing.assert_close(parts.mean(), mean_similarity(features))


def test_the_class_token_comes_beside_the_same_predictions() -> None:
    torch.manual_seed(0)
    model = MaskedAutoencoder(ViT((8, 8), 4, width=16, depth=1, heads=2), 16, 1, 2, out_dim=7)
    images, mask = torch.randn(3, 3, 8, 8), random_mask(draw_from(torch.Generator().manual_seed(0), 3), 4, 0.5)
    prediction, classes = model(images, mask, with_class=True)
    assert torch.equal(prediction, model(images, mask))
    assert torch.equal(classes, model.encoder(images, mask.keep)[:, 0])
    mean_similarity(classes).backward()
    assert model.encoder.cls_token.grad is not None
    assert model.encoder.cls_token.grad.abs().sum() > 0
    assert model.decoder_embed.weight.grad is None  # the term acts on the encoder alone


@pytest.mark.parametrize("weight", [-0.01, float("nan"), float("inf")])
def test_weights_that_cannot_be(weight: float) -> None:
    with pytest.raises(ConfigError, match=f"--uniformity {weight} is not a weight"):
        check_uniformity(weight, "mae", 8)


def test_when_there_is_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match=r"--uniformity is for --layout mae, .* not beit"):
        check_uniformity(0.01, "beit", 8)
    with pytest.raises(ConfigError, match="raise --batch-size or lower --accumulate"):
        check_uniformity(0.01, "mae", 1)
    check_uniformity(0.0, "beit", 1)  # off
    check_uniformity(0.01, "mae", 2)
