"""Losses beyond squared error: features of teachers (VQGAN, PeCo) and a patch discriminator (VQGAN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from clustermim.teachers import Teacher, open_teacher

LARGEST_WEIGHT = 1e4  # of the generator's loss; where its gradient vanishes the ratio would have no bound


class Discriminator(nn.Module):
    """Images (B, C, H, W) to a score for each neighbourhood of pixels (B, 1, H/4, W/4): high for real ones."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.score = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(2 * images - 1), 0.2)  # (B, W, H/2, W/2)
        x = F.leaky_relu(self.second(x), 0.2)  # (B, 2W, H/4, W/4)
        out: Tensor = self.score(x)  # (B, 1, H/4, W/4)
        return out


def discriminator_loss(discriminator: nn.Module, images: Tensor, rebuilt: Tensor) -> Tensor:
    """The hinge loss that teaches a discriminator; nothing of it reaches what made the reconstructions."""
    real, made = discriminator(images), discriminator(rebuilt.detach())
    return (F.relu(1 - real).mean() + F.relu(1 + made).mean()) / 2


def generator_loss(discriminator: nn.Module, rebuilt: Tensor) -> Tensor:
    """How real reconstructions do not look; nothing of it reaches the discriminator."""
    frozen = {name: parameter.detach() for name, parameter in discriminator.named_parameters()}
    scores: Tensor = functional_call(discriminator, frozen, (rebuilt,))
    return -scores.mean()


def adaptive_weight(reconstruction: Tensor, generator: Tensor, last: Tensor) -> Tensor:
    """‖∇ reconstruction‖ / (‖∇ generator‖ + 1e-4) at the decoder's last layer, where both losses meet."""
    ours, theirs = (torch.autograd.grad(loss, last, retain_graph=True)[0] for loss in (reconstruction, generator))
    weight: Tensor = (ours.norm() / (theirs.norm() + 1e-4)).clamp(max=LARGEST_WEIGHT).detach()
    return weight


def perceptual_loss(teachers: Sequence[Teacher], rebuilt: Tensor, images: Tensor) -> Tensor:
    """Squared distance of unit feature vectors of reconstructions and images, mean over places and teachers."""
    losses = []
    for teacher in teachers:
        with torch.no_grad():
            target = F.normalize(teacher.features(images), dim=1)  # (B, D, h, w)
        losses.append((F.normalize(teacher.features(rebuilt), dim=1) - target).square().sum(1).mean())
    return torch.stack(losses).mean()


def open_teachers(given: Any, shape: tuple[int, int, int]) -> list[Teacher]:
    """Teachers, one or several, for the perceptual loss, frozen; images (C, H, W) they cannot take are refused."""
    teachers = [open_teacher(one) for one in (given if isinstance(given, list | tuple) else [given])]
    for teacher in teachers:
        teacher.eval().requires_grad_(False)
        teacher.check(torch.zeros(1, *shape))
        teacher.features(torch.zeros(1, *shape))
    return teachers
