"""The networks of learned tokenizers, and how they are trained: losses as one module, and the task of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from clustermim.data import Batch, Source, to_float
from clustermim.data.augment import Augment
from clustermim.data.randomness import ImageRandom
from clustermim.distributed import all_reduce_sum, world_size
from clustermim.errors import ConfigError
from clustermim.patches import grid_size
from clustermim.teachers import Teacher, open_teacher
from clustermim.tokenizers.base import check_sizes
from clustermim.tokenizers.quantizers import Quantized
from clustermim.tokenizers.usage import measure_use
from clustermim.tokenizers.vqkd import PatchTransformer, distillation_loss
from clustermim.training import Schedule, Task

if TYPE_CHECKING:
    from clustermim.tokenizers.learned import LearnedTokenizer

LARGEST_WEIGHT = 1e4  # of the generator's loss; where its gradient vanishes the ratio would have no bound
# Clipped, because the first steps after a codebook changes can be wild.
SCHEDULE = Schedule(epochs=3, batch_size=64, base_lr=4e-3, weight_decay=0.0, clip=1.0)


@dataclass(frozen=True)
class AuxiliaryLosses:
    """Losses beside reconstruction, of VQGAN and PeCo: how much of each, and from when on.

    Args:
        teacher: whose features a reconstruction should keep, such as run:FOLDER?layer=2, perhaps several; for vqkd the
            one whose features its decoder predicts.
        perceptual_weight: of the loss on these features.
        discriminator_weight: of the adversarial loss, beside the ratio of gradients that balances it.
        discriminator_start: share of the training after which the discriminator takes part.
    """

    teacher: list[str] | None = None
    perceptual_weight: float = 1.0
    discriminator_weight: float = 0.1
    discriminator_start: float = 0.5

    def __post_init__(self) -> None:
        check_sizes(perceptual_weight=(self.perceptual_weight, 0), discriminator_weight=(self.discriminator_weight, 0))
        if not 0 <= self.discriminator_start <= 1:
            raise ConfigError(f"--discriminator-start {self.discriminator_start} is not a share of the training")


class Residual(nn.Module):
    """x + 1×1(3×3(x)), (B, W, h, w) to the same.

    Nothing is normalised over the batch or the image: the vector of a patch depends on its surroundings only.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 3, padding=1)
        self.mix = nn.Conv2d(width, width, 1)
        for parameter in self.mix.parameters():
            nn.init.zeros_(parameter)  # the identity: patches are coded one by one before they look around

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mix(F.gelu(self.spatial(F.gelu(x))))
        return out


class Autoencoder(nn.Module):
    """Images (B, C, H, W) to features (B, D, h, w), h = H / p, and values (B, D, h, w) back to images.

    Both halves work on the patch grid, where a CPU is fast: a patch embedding, residual blocks, a 1×1 convolution.

    Args:
        channels: C of the images.
        patch_size: side p of a patch.
        width: channels W inside.
        depth: residual blocks in each half.
        code_dim: D, of what the quantizer takes and gives.
    """

    mean: Tensor  # (C, 1, 1), of the images, which are normalised inside
    std: Tensor  # (C, 1, 1)

    def __init__(self, channels: int, patch_size: int, width: int, depth: int, code_dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))
        self.embed = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.encoder = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.to_features = nn.Conv2d(width, code_dim, 1)
        self.from_values = nn.Conv2d(code_dim, width, 1)
        self.decoder = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.to_pixels = nn.Conv2d(width, channels * patch_size**2, 1)
        for layer in (self.embed, self.to_features, self.from_values, self.to_pixels):
            nn.init.orthogonal_(layer.weight)  # keeps distances between patches: the first codebook is a good one
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] to features (B, D, h, w)."""
        grid_size(images.shape[2], images.shape[3], self.patch_size)
        x = self.embed((images - self.mean) / self.std)  # (B, W, h, w)
        out: Tensor = self.to_features(self.encoder(x))  # (B, D, h, w)
        return out

    def decode(self, values: Tensor) -> Tensor:
        """Values (B, D, h, w) to images (B, C, H, W), about [0, 1] but not clamped to it."""
        x = self.to_pixels(self.decoder(self.from_values(values)))  # (B, C·p·p, h, w)
        return F.pixel_shuffle(x, self.patch_size) * self.std + self.mean  # (B, C, H, W)


class Discriminator(nn.Module):
    """Images (B, C, H, W) to a score for each neighbourhood of pixels (B, 1, H/4, W/4): high for real ones."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.score = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(2 * images - 1), 0.2)  # (B, W, H/2, W/2)
        out: Tensor = self.score(F.leaky_relu(self.second(x), 0.2))  # (B, 1, H/4, W/4)
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
        self.predictor = make_predictor(tokenizer, self.teachers) if tokenizer.kind == "vqkd" else None
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        progress = int(self.steps) / self.total_steps
        self.steps += 1
        quantized = self.tokenizer.quantizer(self.tokenizer.autoencoder(images), progress)
        if self.predictor is None:
            terms = self._rebuild(images, quantized, progress)
        else:
            features = self.teachers[0](images, quantized.ids.shape[1:])  # (B, N, D)
            terms = {"distillation": distillation_loss(self.predictor(quantized.values), features), **quantized.losses}
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def _rebuild(self, images: Tensor, quantized: Quantized, progress: float) -> dict[str, Tensor]:
        """The losses of images made of their tokens."""
        autoencoder = self.tokenizer.autoencoder
        assert isinstance(autoencoder, Autoencoder)
        rebuilt = autoencoder.decode(quantized.values)
        error = F.mse_loss(rebuilt, images) / autoencoder.std.square().mean()  # 1 is what the mean colour would cost
        terms = {"reconstruction": error, **quantized.losses}
        if self.teachers:
            terms["perceptual"] = self.losses.perceptual_weight * perceptual_loss(self.teachers, rebuilt, images)
        if self.discriminator is not None:
            terms |= self._adversarial(self.discriminator, terms, images, rebuilt, progress)
        return terms

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
        autoencoder = self.tokenizer.autoencoder
        assert isinstance(autoencoder, Autoencoder)
        weight = adaptive_weight(image_terms, generator, autoencoder.to_pixels.weight)
        return {
            "discriminator": discriminator_loss(discriminator, images, rebuilt),
            "generator": self.losses.discriminator_weight * weight * generator,
        }


class LearningTask(Task):
    """A learner on augmented images; usage, perplexity and PSNR are logged after every epoch."""

    model: Learner

    def __init__(self, learner: Learner, source: Source, augment: Augment) -> None:
        self.name, self.model, self.source, self.augment = f"fit {learner.tokenizer.kind}", learner, source, augment

    def view(self, batch: Batch, random: ImageRandom) -> Tensor:
        return batch.images

    def step(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = model(to_float(batch))
        return losses

    def setup(self, settings: Any, fabric: Any) -> None:
        self.model.total_steps = settings.total_steps
        for teacher in self.model.teachers:
            teacher.to(fabric.device)

    def after_epoch(self, epoch: int) -> Mapping[str, float]:
        return measure_use(self.model.tokenizer, self.source)

    @property
    def inputs(self) -> dict[str, str]:
        return {**super().inputs, "teachers": " ".join(teacher.version() for teacher in self.model.teachers)}


def make_predictor(tokenizer: LearnedTokenizer, teachers: Sequence[Teacher]) -> PatchTransformer:
    """The decoder of VQ-KD, from the vectors of tokens to a teacher's features; the teacher is tried on one image."""
    (teacher,), (rows, columns), patch = teachers, tokenizer.grid_, tokenizer.patch_size
    teacher(torch.zeros(1, tokenizer.channels_, rows * patch, columns * patch), (rows, columns))
    return PatchTransformer(tokenizer.quantizer.width, (rows, columns), 1, tokenizer.width, 1, teacher.dim)


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
    parts = [torch.autograd.grad(loss, last, retain_graph=True)[0] for loss in (reconstruction, generator)]
    ours, theirs = all_reduce_sum(torch.stack(parts)) / world_size()  # of all images, as one rank would see them
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
