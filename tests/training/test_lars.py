"""LARS against its formula, written out in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from clustermim.training import LARS, load_checkpoint, save_checkpoint, set_lr


def by_hand(
    weight: np.ndarray, gradients: list[np.ndarray], lrs: list[float], momentum: float, decay: float, trust: float
) -> np.ndarray:
    """The steps of You et al. (2017) with momentum, one after the other; vectors take plain steps."""
    memory = np.zeros_like(weight)
    for lr, gradient in zip(lrs, gradients, strict=True):
        update = gradient.copy()
        if weight.ndim > 1:
            update = gradient + decay * weight
            length, step = np.sqrt((weight**2).sum()), np.sqrt((update**2).sum())
            if length > 0 and step > 0:
                update = update * (trust * length / step)
        memory = momentum * memory + update
        weight = weight - lr * memory
    return weight


@pytest.mark.parametrize("shape", [(4, 3), (5,), (2, 3, 2, 2)])
@pytest.mark.parametrize(("decay", "trust"), [(0.0, 0.001), (0.1, 0.02)])
def test_five_steps(shape: tuple[int, ...], decay: float, trust: float) -> None:
    draws = np.random.default_rng(0)
    start, gradients = draws.normal(size=shape), [draws.normal(size=shape) for _ in range(5)]
    weight = nn.Parameter(torch.tensor(start))
    optimizer = LARS([{"params": [weight]}], lr=0.7, weight_decay=decay, trust=trust)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    expected = by_hand(start, gradients, [0.7] * 5, 0.9, decay, trust)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)
    assert not np.allclose(expected, start)


def test_groups_under_a_schedule_with_norms_that_are_zero() -> None:
    """Weights that start at zero, gradients that vanish on the way, and rates that change."""
    draws = np.random.default_rng(1)
    starts = [draws.normal(size=(3, 4)), np.zeros((2, 5)), draws.normal(size=6), np.zeros(3)]
    gradients = [[draws.normal(size=start.shape) * (step != 2) for step in range(6)] for start in starts]
    rates, decays = [0.1, 0.4, 0.9, 0.9, 0.3, 0.05], [0.2, 0.0, 0.2, 0.0]
    weights = [nn.Parameter(torch.tensor(start)) for start in starts]
    groups = [
        {"params": [weight], "weight_decay": decay, "lr_scale": 1 + place}
        for place, (weight, decay) in enumerate(zip(weights, decays, strict=True))
    ]
    optimizer = LARS(groups, lr=1.0, momentum=0.8, trust=0.05)
    for step, rate in enumerate(rates):
        set_lr(optimizer, rate)
        for weight, own in zip(weights, gradients, strict=True):
            weight.grad = torch.tensor(own[step])
        optimizer.step()
    for place, weight in enumerate(weights):
        scaled = [rate * (1 + place) for rate in rates]
        expected = by_hand(starts[place], gradients[place], scaled, 0.8, decays[place], 0.05)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-11)


def test_the_length_of_a_step_does_not_depend_on_the_gradient() -> None:
    moved = []
    for scale in (1e-3, 1.0, 1e3):
        weight = nn.Parameter(torch.ones(2, 8))  # of norm 4
        weight.grad = scale * torch.arange(16.0).view(2, 8)
        LARS([{"params": [weight]}], lr=2.0).step()
        moved.append(float((weight.detach() - 1).norm()))
    assert moved == pytest.approx([2.0 * 0.001 * 4] * 3, rel=1e-4)


def test_where_a_norm_is_zero_the_step_is_plain() -> None:
    weight, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    weight.grad, still.grad = torch.full((2, 2), 3.0), torch.zeros(2, 2)
    LARS([{"params": [weight, still]}], lr=0.5).step()
    assert torch.equal(weight.detach(), torch.full((2, 2), -1.5))
    assert torch.equal(still.detach(), torch.ones(2, 2))


def test_parameters_without_a_gradient_stay() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    LARS([{"params": [weight]}], lr=0.5, weight_decay=0.1).step()
    assert torch.equal(weight.detach(), torch.ones(2, 2))


def test_a_checkpoint_keeps_its_memory(tmp_path: Path) -> None:
    def grown(steps: range, model: nn.Linear, optimizer: LARS) -> None:
        for number in steps:
            optimizer.zero_grad()
            model(torch.full((1, 3), float(number + 1))).square().sum().backward()
            optimizer.step()

    def fresh() -> tuple[nn.Linear, LARS]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, LARS([{"params": list(model.parameters())}], lr=0.01)

    whole, whole_optimizer = fresh()
    grown(range(6), whole, whole_optimizer)
    first, first_optimizer = fresh()
    grown(range(3), first, first_optimizer)
    save_checkpoint(tmp_path / "c", first, first_optimizer, {}, {})
    second, second_optimizer = fresh()
    load_checkpoint(tmp_path / "c", second, second_optimizer)
    for mine, its in zip(first.parameters(), second.parameters(), strict=True):
        memory = first_optimizer.state[mine]["momentum_buffer"]
        assert memory.abs().min() > 0
        assert torch.equal(second_optimizer.state[its]["momentum_buffer"], memory)
    grown(range(3, 6), second, second_optimizer)
    assert torch.equal(whole.weight, second.weight)
    assert torch.equal(whole.bias, second.bias)
