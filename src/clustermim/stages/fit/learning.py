"""How a learned tokenizer is trained: its losses as one module, the one training loop, and what it is measured by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from clustermim.data import Source, open_source, to_float
from clustermim.data.augment import Augment, augmented
from clustermim.distributed import all_reduce_sum, process_group, rank, world_size
from clustermim.errors import ConfigError, TokenizerError
from clustermim.progress import log_info, warn_skipped
from clustermim.runs import NOT_CONFIGURATION, ResumableRun, check_not_inside, open_resumable_run
from clustermim.stages.fit.usage import MEASURED, use_of, warn_unused
from clustermim.teachers import Teacher
from clustermim.tokenizers.learned import LearnedTokenizer
from clustermim.tokenizers.losses import (
    Discriminator,
    adaptive_weight,
    discriminator_loss,
    generator_loss,
    open_teachers,
    perceptual_loss,
)
from clustermim.training import (
    SeededBatches,
    Settings,
    TrainResult,
    adamw,
    make_schedule,
    open_fabric,
    parameter_groups,
    train,
)

MEASURE_BATCH = 256
CLIP = 1.0  # of the gradient: the first steps after a codebook changes can be wild

REMEDIES = {
    "vq": "a lower --k, a higher --dead-code-threshold, a lower --decay or more --epochs",
    "dvae": "a lower --k, a higher --kl-weight, a higher --temperature or more --epochs",
    "fsq": "a lower --k or more --epochs",
    "lfq": "a lower --k, a higher --entropy-weight or more --epochs",
}


@dataclass(frozen=True)
class AuxiliaryLosses:
    """Losses beside reconstruction: how much of each, and from when on."""

    perceptual_weight: float = 1.0
    discriminator_weight: float = 0.1
    discriminator_start: float = 0.5  # share of the training

    def __post_init__(self) -> None:
        if self.perceptual_weight < 0 or self.discriminator_weight < 0:
            raise ConfigError("--perceptual-weight and --discriminator-weight are 0 at least")
        if not 0 <= self.discriminator_start <= 1:
            raise ConfigError(
                f"--discriminator-start {self.discriminator_start} is not a share of the training, 0 to 1"
            )


class Learner(nn.Module):
    """A tokenizer and what trains it: images (B, C, H, W) in [0, 1] to its losses.

    It counts its steps in a buffer, so that schedules continue from a checkpoint.
    """

    steps: Tensor

    def __init__(
        self, tokenizer: LearnedTokenizer, total_steps: int, extras: AuxiliaryLosses, teachers: Sequence[Teacher] = ()
    ) -> None:
        super().__init__()
        self.tokenizer, self.total_steps, self.extras = tokenizer, total_steps, extras
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
            terms["perceptual"] = self.extras.perceptual_weight * perceptual_loss(self.teachers, rebuilt, images)
        if self.discriminator is not None:
            terms |= self._adversarial(self.discriminator, terms, images, rebuilt, progress)
        check_finite(terms, int(self.steps))
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def _adversarial(
        self, discriminator: Discriminator, terms: dict[str, Tensor], images: Tensor, rebuilt: Tensor, progress: float
    ) -> dict[str, Tensor]:
        """The losses of both sides; one backward pass serves them, since neither reaches the other's parameters."""
        if progress < self.extras.discriminator_start:
            # zero gradients: the optimizer and other ranks see the same parameters from the first step on
            nothing = 0 * torch.stack([parameter.sum() for parameter in discriminator.parameters()]).sum()
            return {"discriminator": nothing, "generator": nothing}
        image_terms = torch.stack([terms[name] for name in ("reconstruction", "perceptual") if name in terms]).sum()
        generator = generator_loss(discriminator, rebuilt)
        weight = adaptive_weight(image_terms, generator, self.tokenizer.autoencoder.to_pixels.weight)
        return {
            "discriminator": discriminator_loss(discriminator, images, rebuilt),
            "generator": self.extras.discriminator_weight * weight * generator,
        }


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


def learn(
    kind: str,
    options: dict[str, Any],
    quantizer: Iterable[str] = (),
    teachers: Sequence[str] = (),
    extras: AuxiliaryLosses | None = None,
) -> None:
    """The stage of every learned tokenizer; `options` are its function's, `quantizer` names those of its quantizer."""
    config = {name: value for name, value in options.items() if name not in NOT_CONFIGURATION}
    sizes = {name: options[name] for name in ("k", "patch_size", "width", "depth", "seed")}
    names = ("out", "epochs", "batch_size", "base_lr", "seed", "stop_after")
    out, epochs, batch_size, base_lr, seed, stop_after = (options[name] for name in names)
    check_not_inside(teachers, out, "the teacher")
    with process_group():
        torch.manual_seed(seed)  # the discriminator's first weights; the loop seeds what comes after
        tokenizer = LearnedTokenizer(kind, **sizes, quantizer={name: options[name] for name in quantizer})
        source = open_source(options["data"])
        opened = open_teachers(teachers, source.shape)
        settings = make_schedule(source, epochs, batch_size, base_lr, 0.0, None, CLIP, 1, seed, stop_after)
        fabric = open_fabric(options["device"], options["precision"])
        opened = [teacher.to(fabric.device) for teacher in opened]
        learner = Learner(tokenizer.fit(source), settings.total_steps, extras or AuxiliaryLosses(), opened)
        again = {name: options[name] for name in ("resume", "overwrite")}
        # only now, when nothing the user chose can be wrong any more
        with open_resumable_run(out, f"fit {kind}", config, **again) as run:
            inputs = {"data": source.fingerprint, "teachers": " ".join(teacher.version() for teacher in opened)}
            done = train_learner(learner, source, options["augment"], settings, run, fabric, inputs)
            finish(run, tokenizer, source, done.summary())
        warn_skipped(source.skipped)
        if rank() == 0:
            print(f"wrote a tokenizer of {tokenizer.vocab_size} tokens ({kind}) to {out}")


def train_learner(
    learner: Learner,
    source: Source,
    augment: Augment,
    settings: Settings,
    run: ResumableRun,
    fabric: Fabric,
    inputs: Mapping[str, str] | None = None,
) -> TrainResult:
    """Train in the one loop; usage, perplexity and PSNR are logged after every epoch."""
    batch_size = settings.images_per_step // world_size()
    return train(
        lambda wrapped, images: wrapped(images),
        SeededBatches(source, batch_size, settings.seed, lambda batch, rng: augmented(batch.images, augment, rng)),
        learner,
        adamw(parameter_groups(learner, weight_decay=0.0), settings.lr),
        settings,
        run,
        fabric,
        after_epoch=lambda epoch: measure(learner.tokenizer, source),
        inputs=inputs,
    )


def finish(run: ResumableRun, tokenizer: LearnedTokenizer, source: Source, trained: dict[str, float]) -> None:
    """Write the tokenizer, a picture of reconstructions and the summary."""
    found = measure(tokenizer, source)
    if rank() == 0:
        tokenizer.save(run.folder)
        from clustermim.drawing.tokenizer_reconstructions import write_reconstructions  # matplotlib is slow to import

        write_reconstructions(run, tokenizer, source, found)
    run.summary = {
        "results": {**found, **trained},
        "data": source.describe(),
    }
    log_info(", ".join(f"{name} {value:,.6g}" for name, value in found.items()))
    warn_unused(found, REMEDIES.get(tokenizer.kind, REMEDIES["vq"]))
