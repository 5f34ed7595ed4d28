"""How a learned tokenizer is trained: its losses as one module, the task of that module, and what it is measured by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from clustermim.data import Batch, Source, to_float
from clustermim.data.augment import Augment, augmented
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError, TokenizerError
from clustermim.teachers import Teacher, open_teacher
from clustermim.tokenizers.usage import MEASURED, use_of
from clustermim.training import Schedule, Task

if TYPE_CHECKING:
    from clustermim.tokenizers.learned import LearnedTokenizer

MEASURE_BATCH = 256
LARGEST_WEIGHT = 1e4  # of the generator's loss; where its gradient vanishes the ratio would have no bound
# Clipped, because the first steps after a codebook changes can be wild.
SCHEDULE = Schedule(epochs=3, batch_size=64, base_lr=4e-3, weight_decay=0.0, clip=1.0)


@dataclass(frozen=True)
class AuxiliaryLosses:
    """Losses beside reconstruction, of VQGAN and PeCo: how much of each, and from when on.

    Args:
        teacher: whose features a reconstruction should keep, such as run:FOLDER?layer=2; may be given several times.
        perceptual_weight: of the loss on these features.
        discriminator_weight: of the adversarial loss, beside the ratio of gradients that balances it.
        discriminator_start: share of the training after which the discriminator takes part.
    """

    teacher: list[str] | None = None
    perceptual_weight: float = 1.0
    discriminator_weight: float = 0.1
    discriminator_start: float = 0.5

    def __post_init__(self) -> None:
        if self.perceptual_weight < 0 or self.discriminator_weight < 0:
            raise ConfigError("--perceptual-weight and --discriminator-weight are 0 at least")
        if not 0 <= self.discriminator_start <= 1:
            raise ConfigError(
                f"--discriminator-start {self.discriminator_start} is not a share of the training, 0 to 1"
            )


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


class Learner(nn.Module):
    """A tokenizer and what trains it: images (B, C, H, W) in [0, 1] to its losses.

    It counts its steps in a buffer, so that schedules continue from a checkpoint.
    """

    steps: Tensor

    def __init__(
        self, tokenizer: LearnedTokenizer, total_steps: int, losses: AuxiliaryLosses, teachers: Sequence[Teacher] = ()
    ) -> None:
        super().__init__()
        self.tokenizer, self.total_steps, self.losses = tokenizer, total_steps, losses
        self.teachers = tuple(teachers)  # a tuple is no part of the module: teachers are neither trained nor saved
        self.discriminator = Discriminator(tokenizer.channels_) if tokenizer.kind == "vqgan" else None
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        progress = int(self.steps) / self.total_steps
        self.steps += 1
        autoencoder = self.tokenizer.autoencoder
        quantized = self.tokenizer.quantizer(autoencoder(images), progress)
        rebuilt = autoencoder.decode(quantized.values)
        terms = {"reconstruction": autoencoder.error(rebuilt, images), **quantized.losses}
        if self.teachers:
            terms["perceptual"] = self.losses.perceptual_weight * perceptual_loss(self.teachers, rebuilt, images)
        if self.discriminator is not None:
            terms |= self._adversarial(self.discriminator, terms, images, rebuilt, progress)
        check_finite(terms, int(self.steps))
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def _adversarial(
        self, discriminator: Discriminator, terms: dict[str, Tensor], images: Tensor, rebuilt: Tensor, progress: float
    ) -> dict[str, Tensor]:
        """The losses of both sides; one backward pass serves them, since neither reaches the other's parameters."""
        if progress < self.losses.discriminator_start:
            # zero gradients: the optimizer and other ranks see the same parameters from the first step on
            nothing = 0 * torch.stack([parameter.sum() for parameter in discriminator.parameters()]).sum()
            return {"discriminator": nothing, "generator": nothing}
        image_terms = torch.stack([terms[name] for name in ("reconstruction", "perceptual") if name in terms]).sum()
        generator = generator_loss(discriminator, rebuilt)
        weight = adaptive_weight(image_terms, generator, self.tokenizer.autoencoder.to_pixels.weight)
        return {
            "discriminator": discriminator_loss(discriminator, images, rebuilt),
            "generator": self.losses.discriminator_weight * weight * generator,
        }


class LearningTask(Task):
    """A learner on augmented images; usage, perplexity and PSNR are logged after every epoch."""

    model: Learner

    def __init__(self, learner: Learner, source: Source, augment: Augment) -> None:
        self.name, self.model, self.source, self.augment = f"fit {learner.tokenizer.kind}", learner, source, augment

    def view(self, batch: Batch, generator: torch.Generator) -> Tensor:
        return augmented(batch.images, self.augment, generator)

    def step(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = model(batch)
        return losses

    def setup(self, settings: Any, fabric: Any) -> None:
        self.model.total_steps = settings.total_steps
        for teacher in self.model.teachers:
            teacher.to(fabric.device)

    def after_epoch(self, epoch: int) -> Mapping[str, float]:
        return measure(self.model.tokenizer, self.source)

    @property
    def inputs(self) -> dict[str, str]:
        return {**super().inputs, "teachers": " ".join(teacher.version() for teacher in self.model.teachers)}


def check_finite(terms: dict[str, Tensor], step: int) -> None:
    """Refuse a loss that is not finite, by name: the loop knows only the sum."""
    values = torch.stack([term.detach().float() for term in terms.values()]).tolist()
    for name, value in zip(terms, values, strict=True):
        if not math.isfinite(value):
            raise TokenizerError(
                f"training broke at step {step}: the {name} loss is {value}; lower --base-lr"
                + (", or --discriminator-weight" if name in ("generator", "discriminator") else "")
            )


@torch.no_grad()
def measure(tokenizer: LearnedTokenizer, source: Source, limit: int = MEASURED) -> dict[str, float]:
    """Usage, perplexity and PSNR over at most `limit` images of a source, the same ones each time."""
    device = tokenizer.autoencoder.mean.device
    counts = torch.zeros(tokenizer.vocab_size, dtype=torch.int64)
    sums = torch.zeros(3, dtype=torch.float64)  # squared error, numbers compared, images
    left = -(-min(limit, len(source)) // world_size())
    for batch in source.batches(MEASURE_BATCH, seed=0, rank=rank(), world_size=world_size()):
        images = to_float(batch.first(left).images).to(device)
        ids, _ = tokenizer.quantizer.assign(tokenizer.autoencoder(images))  # (B, h, w)
        squared = (tokenizer.decode(ids) - images).square().double().sum()
        counts += torch.bincount(ids.flatten().cpu(), minlength=len(counts))
        sums += torch.tensor([float(squared), images.numel(), len(images)], dtype=torch.float64)
        left -= len(images)
        if left <= 0:
            break
    counts, sums = all_reduce_sum(counts), all_reduce_sum(sums)
    error = max(float(sums[0] / sums[1]), 1e-12)
    return {**use_of(counts, int(sums[2])), "psnr": -10 * math.log10(error)}


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
