"""Features of a teacher as a target."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clustermim.errors import DataError, TeacherError
from clustermim.targets import FeatureTarget
from stub_teacher import StubTeacher


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_values_by_their_formula(stride: int, images: Tensor) -> None:
    teacher = StubTeacher(stride=stride)
    target = FeatureTarget(teacher, 4)
    values = target(images)
    assert (target.dim, target.channels, target.needs_labels) == (5, 3, False)
    assert values.shape == (2, 6, 5)
    for image in range(2):
        for patch in range(6):
            y, x = patch // 3 * 4, patch % 3 * 4
            feature = teacher.mix @ images[image, :, y : y + 4, x : x + 4].mean((1, 2))  # (5,), means of means
            expected = feature / feature.square().sum().sqrt() * 5**0.5
            torch.testing.assert_close(values[image, patch], expected.detach())


def test_a_feature_of_zero_stays_zero() -> None:
    assert not FeatureTarget(StubTeacher(), 4)(torch.zeros(1, 3, 4, 4)).any()


def test_the_teacher_is_frozen_and_not_in_training(images: Tensor) -> None:
    target = FeatureTarget(StubTeacher().train(), 4)
    assert torch.equal(target(images), target(images))  # no dropout
    assert not target(images.requires_grad_()).requires_grad
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_loss(images: Tensor) -> None:
    """The squared distance to features of length 1, of predictions on the same scale."""
    target = FeatureTarget(StubTeacher(), 4)
    values = target(images)
    assert target.loss(torch.zeros_like(values), values).item() == pytest.approx(1)
    prediction = torch.randn(2, 6, 5, requires_grad=True)
    unit = values / values.norm(dim=-1, keepdim=True)
    expected = (prediction / 5**0.5 - unit).square().sum(-1).mean()
    torch.testing.assert_close(target.loss(prediction, values), expected)
    assert target.loss(prediction, values).requires_grad
    assert target.loss(prediction.bfloat16(), values).dtype == torch.float32


def test_images_that_do_not_fit(images: Tensor) -> None:
    with pytest.raises(TeacherError, match="the teacher stub takes 1-channel images, these have 3"):
        FeatureTarget(StubTeacher(channels=1), 4)(images)
    with pytest.raises(DataError, match="do not divide into patches of 5"):
        FeatureTarget(StubTeacher(), 5)(images)
