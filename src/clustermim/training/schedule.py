"""How long and how fast to train, as a user says it; and from that the settings of the loop."""

from __future__ import annotations

from dataclasses import dataclass

from clustermim.distributed import world_size
from clustermim.errors import ConfigError, DataError
from clustermim.progress import log_info
from clustermim.training.devices import Device, Precision
from clustermim.training.optimizer import scaled_lr
from clustermim.training.sharding import Strategy
from clustermim.training.state import Settings
from clustermim.training.trackers import Tracker


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, and where.

    Args:
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks and accumulated parts; where there are fewer than 256,
            the usual batch is made smaller.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        min_lr: the learning rate at the end of the cosine.
        warmup_epochs: epochs in which the learning rate rises; by default a tenth of them.
        weight_decay: of AdamW, not on biases, norms, tokens and positions.
        clip: largest norm of the gradient.
        accumulate: parts that a batch is computed in, when memory is short.
        seed: the same seed, data and machine give the same bytes on a CPU.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        compile: use torch.compile.
    """

    epochs: int = 20
    batch_size: int = 256
    base_lr: float | None = None  # that of the task
    min_lr: float = 0.0  # as MAE: the last steps average the noise out
    warmup_epochs: float | None = None
    weight_decay: float = 0.05  # MAE's, BEiT's and the paper's
    clip: float | None = None  # MAE trains without; the norm is logged all the same
    accumulate: int = 1
    seed: int = 0
    device: Device = "auto"
    precision: Precision = "auto"
    compile: bool = False


@dataclass(frozen=True)
class RunOptions:
    """What says where and when a training runs, not what it is: no part of a configuration.

    Args:
        track: also log to tensorboard, wandb or mlflow.
        stop_after: leave after so many epochs of the schedule, to resume later; for queues that give few hours.
        keep: checkpoints that an unfinished run keeps, for when the newest is damaged; a complete one keeps the last.
        save_every: pretrain also keeps its encoder after every so many epochs, in OUT/epoch-N.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
        workers: threads that decode files; 0 for one a core.
        strategy: on several ranks, `ddp` has the whole model on each; `fsdp` shares weights, gradients and moments out,
            for models that one device does not hold: pretrain only.
    """

    track: list[Tracker] | None = None
    stop_after: int | None = None
    keep: int = 2
    save_every: int | None = None
    resume: bool = False
    overwrite: bool = False
    workers: int = 0
    strategy: Strategy = "ddp"


def _fitted_batch(data: str, images: int, unit: int) -> int:
    """The largest batch with four steps an epoch, or else one step: `unit` times a power of two."""
    fitted = unit << (max(images // (4 * unit), 1).bit_length() - 1)
    log_info(f"{data} has {images} images: batches have {fitted}; --batch-size takes another number")
    return fitted


def make_settings(
    schedule: Schedule, data: str, images: int, base_lr: float, options: RunOptions = RunOptions()
) -> Settings:
    """The schedule in steps; `base_lr` is for one that has none. An incomplete last batch of an epoch is left out."""
    batch, parts = schedule.batch_size, schedule.accumulate
    if batch < 1 or parts < 1 or batch % (parts * world_size()):
        raise ConfigError(f"--batch-size {batch} does not divide into {parts} parts on {world_size()} ranks")
    if images < batch == Schedule.batch_size:  # nobody's choice
        batch = _fitted_batch(data, images, parts * world_size())
    steps = images // batch
    if not steps:
        raise DataError(f"{data} has {images} images, fewer than a batch of {batch}: lower --batch-size")
    base_lr = base_lr if schedule.base_lr is None else schedule.base_lr
    lr = scaled_lr(base_lr, batch)
    warmup = schedule.epochs / 10 if schedule.warmup_epochs is None else schedule.warmup_epochs
    log_info(f"learning rate {lr:g} = {base_lr:g} · {batch} / 256, {schedule.epochs} epochs of {steps} steps")
    return Settings(
        epochs=schedule.epochs,
        steps_per_epoch=steps,
        images_per_step=batch,
        lr=lr,
        warmup_steps=round(warmup * steps),
        min_lr=schedule.min_lr,
        accumulate=parts,
        clip=schedule.clip,
        seed=schedule.seed,
        keep=options.keep,
        save_every=options.save_every,
        stop_after=options.stop_after,
    )
