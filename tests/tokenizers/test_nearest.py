"""The nearest centre: equal to brute force, whatever the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clustermim.tokenizers.nearest import nearest_center


def brute_force(vectors: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """Squared distances by their definition, in float64."""
    return (vectors.double()[:, None] - centers.double()).square().sum(2)


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 12), st.integers(1, 60))
def test_equals_brute_force(seed: int, count: int, k: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.rand(count, width, generator=generator)
    centers = torch.rand(k, width, generator=generator)
    distances = brute_force(vectors, centers)
    ids, found = nearest_center(vectors, centers)
    assert torch.equal(ids, distances.argmin(1))
    torch.testing.assert_close(found.double(), distances.min(1).values, rtol=1e-4, atol=1e-5)


def test_near_ties_are_decided_exactly() -> None:
    # The vectors lie halfway between two centres, but for less than float32 can see of the scores.
    direction = torch.nn.functional.normalize(torch.randn(256, generator=torch.Generator().manual_seed(0)), dim=0)
    centers = torch.stack([10 * direction, -10 * direction, 30 * direction])
    offsets = torch.linspace(-3e-6, 3e-6, 101)
    vectors = offsets[:, None] * direction + 5 * torch.ones(256)
    assert torch.equal(nearest_center(vectors, centers)[0], brute_force(vectors, centers).argmin(1))


def test_ties_go_to_the_lower_id() -> None:
    centers = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    assert nearest_center(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), centers)[0].tolist() == [0, 0]


@pytest.mark.parametrize("size", [1, 7, 2048, 5000])
def test_does_not_depend_on_the_batch(size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.rand(5000, 48, generator=generator).mul(255).round().div(255)
    centers = vectors[:97] + 1e-7
    whole = nearest_center(vectors, centers)[0]
    first = 5000 if size > 7 else 300
    parts = torch.cat([nearest_center(part, centers)[0] for part in vectors[:first].split(size)])
    assert torch.equal(parts, whole[:first])


@pytest.mark.parametrize("threads", [1, 2])
def test_modes_of_the_caller_change_nothing(threads: int) -> None:
    generator = torch.Generator().manual_seed(2)
    vectors, centers = torch.rand(9000, 20, generator=generator), torch.rand(150, 20, generator=generator)
    expected, before = brute_force(vectors, centers).argmin(1), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(nearest_center(vectors, centers)[0], expected)
        with torch.inference_mode():
            assert torch.equal(nearest_center(vectors.clone(), centers.clone())[0], expected)
        ids, distances = nearest_center(vectors.requires_grad_(), centers.requires_grad_())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(ids, expected)
    assert not distances.requires_grad


def test_many_near_centres_and_none_at_all() -> None:
    # One centre is so far away that float32 cannot tell the others apart.
    generator = torch.Generator().manual_seed(3)
    centers = torch.cat([torch.rand(200, 8, generator=generator), torch.full((1, 8), 1e5)])
    vectors = torch.rand(50, 8, generator=generator)
    middle = centers.mean(0)  # what is compared is what is left of the numbers after this
    expected = brute_force(vectors - middle, centers - middle).argmin(1)
    assert torch.equal(nearest_center(vectors, centers)[0], expected)
    assert nearest_center(vectors[:0], centers)[0].shape == (0,)
