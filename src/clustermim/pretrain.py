"""The stage that pretrains: source, target and model put together for the training loop. `clustermim pretrain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from clustermim.data import Source, channel_stats, open_source, to_float
from clustermim.data.prefetch import prefetch
from clustermim.data.statistics import ChannelStats
from clustermim.data.transforms import normalize, random_flip, random_pad_crop, random_resized_crop
from clustermim.distributed import rank, ranks, world
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.files import write_atomic
from clustermim.models.masking import Mask, block_mask, random_mask
from clustermim.models.mim import MaskedAutoencoder, MaskedEncoder
from clustermim.models.storage import save_encoder
from clustermim.models.vit import Positions, ViT, find_size
from clustermim.progress import say, warn_skipped
from clustermim.runs import ResumableRun, open_resumable_run
from clustermim.targets import HOGTarget, PixelTarget, Target, TokenTarget, select
from clustermim.tokenizers import load_tokenizer
from clustermim.training import (
    Device,
    Precision,
    Settings,
    Tracker,
    Trained,
    adamw,
    batch_generator,
    open_fabric,
    parameter_groups,
    scaled_lr,
    train,
)
from clustermim.training import init_from as load_weights

Layout = Literal["mae", "beit"]
Masking = Literal["random", "block"]
Augment = Literal["crop", "pad-crop", "none"]
TargetName = Literal["pixels", "hog", "tokens"]

PADDING = 8  # one pixel of padding for so many of the shorter side: 4 at 32 pixels, as is usual for CIFAR


class Views(NamedTuple):
    """What one training step sees."""

    images: Tensor  # (B, C, H, W) float32 in [0, 1], augmented
    labels: Tensor | None  # (B,)
    mask: Mask


def pretrain(
    data: str,
    out: str,
    model: str = "micro",
    patch_size: int = 4,
    target: TargetName = "tokens",
    tokenizer: str | None = None,
    layout: Layout = "mae",
    masking: Masking = "random",
    mask_ratio: float = 0.75,
    epochs: int = 20,
    batch_size: int = 256,
    base_lr: float = 1.5e-3,
    min_lr: float = 0.0,
    warmup_epochs: float | None = None,
    weight_decay: float = 0.05,
    clip: float | None = None,
    accumulate: int = 1,
    augment: Augment = "crop",
    normalize_pixels: bool = False,
    label_smoothing: float = 0.0,
    positions: Positions = "sincos",
    drop_path: float = 0.0,
    device: Device = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    seed: int = 0,
    track: list[Tracker] | None = None,
    init_from: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Pretrain an encoder by predicting what is masked.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        model: size of the encoder: micro, tiny, small, base, large or huge.
        patch_size: side of a patch in pixels.
        target: what to predict of a masked patch: its pixels (MAE), its HOG (MaskFeat) or its token (ClusterMIM).
        tokenizer: the folder of a fitted tokenizer, for tokens.
        layout: `mae` shows visible patches only to the encoder; `beit` shows it mask tokens too.
        masking: single patches, or blocks of them as BEiT masks.
        mask_ratio: share of patches to mask; BEiT's is 0.4.
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks and accumulated parts.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        min_lr: the learning rate at the end of the cosine.
        warmup_epochs: epochs in which the learning rate rises; by default a tenth of them.
        weight_decay: of AdamW, not on biases, norms, tokens and positions.
        clip: largest norm of the gradient.
        accumulate: parts that a batch is computed in, when memory is short.
        augment: random resized crop, pad and crop as for CIFAR, or none; all but none also flip.
        normalize_pixels: predict pixels normalised by the mean and spread of their patch.
        label_smoothing: of the cross-entropy of tokens.
        positions: fixed sine and cosine, or learned.
        drop_path: stochastic depth of the last block.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        compile: use torch.compile.
        seed: the same seed, data and machine give the same bytes on a CPU.
        track: also log to tensorboard or wandb.
        init_from: a checkpoint to start from, on a new schedule.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """
    config = {key: value for key, value in locals().items() if key not in ("out", "resume", "overwrite", "track")}
    with ranks():
        torch.manual_seed(seed)  # the initial weights; the loop seeds what comes after
        source = open_source(data)
        stats = channel_stats(source)
        goal = make_target(target, source, stats, patch_size, tokenizer, normalize_pixels, label_smoothing)
        encoder = ViT.of_size(
            model, source.shape[1:], patch_size, source.shape[0], positions=positions, drop_path=drop_path
        )
        net = make_model(layout, encoder, model, goal.dim)
        if init_from is not None:
            load_weights(init_from, net)
        warmup = epochs / 10 if warmup_epochs is None else warmup_epochs
        settings = plan(source, epochs, batch_size, base_lr, min_lr, warmup, clip, accumulate, seed)
        fabric = open_fabric(device, precision)
        goal = goal.to(fabric.device)
        part = batch_size // accumulate // world()
        batches = Batches(source, encoder.grid, part, augment, masking, mask_ratio, seed)
        # only now, when nothing the user chose can be wrong any more
        with open_resumable_run(out, "pretrain", config, resume=resume, overwrite=overwrite) as run:
            done = train(
                lambda wrapped, views: step(wrapped, views, goal, stats),
                batches,
                torch.compile(net) if compile else net,  # type: ignore[arg-type]
                adamw(parameter_groups(net, weight_decay), settings.lr),
                settings,
                run,
                fabric,
                trackers=track or (),
            )
            finish(run, net, model, stats, source, done)
        warn_skipped(source.skipped)
        if rank() == 0:
            print(f"wrote an encoder pretrained for {epochs} epochs to {out}")


def make_target(
    name: TargetName,
    source: Source,
    stats: ChannelStats,
    patch_size: int,
    tokenizer: str | None,
    normalize_pixels: bool,
    label_smoothing: float,
) -> Target:
    """The target of that name, for the images of a source."""
    channels = source.shape[0]
    if name != "tokens" and tokenizer is not None:
        raise ConfigError(f"--tokenizer is for --target tokens, not {name}")
    if name == "pixels":
        return PixelTarget(patch_size, channels, stats.mean, stats.std, normalize_pixels)
    if name == "hog":
        return HOGTarget(patch_size, channels)
    if tokenizer is None:
        raise ConfigError("--target tokens needs --tokenizer, the folder of a fitted tokenizer")
    target = TokenTarget(load_tokenizer(tokenizer), label_smoothing)
    if target.patch_size != patch_size or target.channels != channels:
        raise TokenizerError(
            f"the tokenizer {tokenizer} is for patches of {target.patch_size} pixels and {target.channels} channels, "
            f"and the model for {patch_size} and {channels}: fit one that agrees"
        )
    if target.needs_labels and source.labels is None:
        raise DataError(f"{source.spec} has no labels, and the tokenizer {tokenizer} is made of them")
    return target


def make_model(layout: Layout, encoder: ViT, name: str, dim: int) -> MaskedAutoencoder | MaskedEncoder:
    """The encoder in one of the two layouts, with a head that predicts `dim` values of a patch."""
    size = find_size(name)
    if layout == "mae":
        return MaskedAutoencoder(encoder, size.decoder_width, size.decoder_depth, size.decoder_heads, dim)
    return MaskedEncoder(encoder, dim)


def plan(
    source: Source,
    epochs: int,
    batch_size: int,
    base_lr: float,
    min_lr: float,
    warmup_epochs: float,
    clip: float | None,
    accumulate: int,
    seed: int,
) -> Settings:
    """The schedule; an incomplete last batch of an epoch is left out."""
    if batch_size < 1 or accumulate < 1 or batch_size % (accumulate * world()):
        raise ConfigError(f"--batch-size {batch_size} does not divide into {accumulate} parts on {world()} ranks")
    steps = len(source) // batch_size
    if not steps:
        raise DataError(
            f"{source.spec} has {len(source)} images, fewer than a batch of {batch_size}: lower --batch-size"
        )
    lr = scaled_lr(base_lr, batch_size)
    say(f"learning rate {lr:g} = {base_lr:g} · {batch_size} / 256, {epochs} epochs of {steps} steps")
    return Settings(
        epochs=epochs,
        steps_per_epoch=steps,
        images_per_step=batch_size,
        lr=lr,
        warmup_steps=round(warmup_epochs * steps),
        min_lr=min_lr,
        accumulate=accumulate,
        clip=clip,
        seed=seed,
    )


class Batches:
    """Augmented images with their masks; what batch i of epoch e holds depends on seed, e and i only."""

    def __init__(
        self,
        source: Source,
        grid: tuple[int, int],
        batch_size: int,
        augment: Augment,
        masking: Masking,
        mask_ratio: float,
        seed: int,
    ) -> None:
        self.source, self.grid, self.batch_size, self.seed = source, grid, batch_size, seed
        self.augment: Augment = augment
        self.masking: Masking = masking
        self.mask_ratio = mask_ratio
        self.mask(1, torch.Generator())  # a ratio that cannot be is refused before the first step

    def __call__(self, epoch: int, start: int) -> Iterator[Views]:
        """This rank's batches of an epoch, from number `start` on, made in the background."""
        return prefetch(self.make(epoch, start))

    def make(self, epoch: int, start: int) -> Iterator[Views]:
        order = int(np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0])  # the same on every rank
        batches = self.source.batches(self.batch_size, seed=order, rank=rank(), world=world(), skip=start)
        for index, batch in enumerate(batches, start):
            generator = batch_generator(self.seed, epoch, index)
            images = self.augmented(batch.images, generator)
            yield Views(images, batch.labels, self.mask(len(images), generator))

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (B, C, H, W) in bytes to float in [0, 1], cropped and flipped."""
        height, width = images.shape[-2:]
        if self.augment == "crop":
            return random_flip(random_resized_crop(to_float(images), (height, width), generator), generator)
        if self.augment == "pad-crop":
            return to_float(random_flip(random_pad_crop(images, min(height, width) // PADDING, generator), generator))
        return to_float(images)

    def mask(self, count: int, generator: torch.Generator) -> Mask:
        """A mask for so many images."""
        if self.masking == "block":
            return block_mask(count, self.grid, self.mask_ratio, generator)
        return random_mask(count, self.grid[0] * self.grid[1], self.mask_ratio, generator)


def step(model: nn.Module, views: Views, target: Target, stats: ChannelStats) -> dict[str, Tensor]:
    """The loss of one batch, on masked patches only."""
    images, labels, mask = views
    values = select(target(images, labels), mask.masked)  # (B, m) or (B, m, dim)
    prediction = model(normalize(images, stats.mean, stats.std), mask)  # (B, m, dim)
    result = {"loss": target.loss(prediction, values)}
    if values.ndim == 2:
        result["accuracy"] = (prediction.detach().argmax(-1) == values).float().mean()
    return result


def finish(
    run: ResumableRun,
    net: MaskedAutoencoder | MaskedEncoder,
    name: str,
    stats: ChannelStats,
    source: Source,
    done: Trained,
) -> None:
    """Write the encoder, the decoder and the summary."""
    if rank() == 0:
        save_encoder(run.folder, net.encoder, name, stats.mean, stats.std)
        rest = {key: value for key, value in net.state_dict().items() if not key.startswith("encoder.")}
        write_atomic(run.folder / "decoder.safetensors", save({k: v.cpu().contiguous() for k, v in rest.items()}))
    run.summary = {
        "results": {
            **done.final,
            "steps": done.steps,
            "training_seconds": round(done.seconds, 1),
            "images_per_second": round(done.images_per_second, 1),
            "data_share": round(done.data_share, 4),
            "parameters": sum(p.numel() for p in net.encoder.parameters()),
        },
        "data": source.describe(),
    }
