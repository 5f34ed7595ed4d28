"""From epochs and a batch size to the settings of the loop."""

from __future__ import annotations

from clustermim.data import Source
from clustermim.distributed import world_size
from clustermim.errors import ConfigError, DataError
from clustermim.progress import log_info
from clustermim.training.optimizer import scaled_lr
from clustermim.training.state import Settings


def make_schedule(
    source: Source,
    epochs: int,
    batch_size: int,
    base_lr: float,
    min_lr: float,
    warmup_epochs: float | None,  # by default a tenth of the epochs
    clip: float | None,
    accumulate: int,
    seed: int,
    stop_after: int | None = None,  # epochs
) -> Settings:
    """The schedule; an incomplete last batch of an epoch is left out."""
    if batch_size < 1 or accumulate < 1 or batch_size % (accumulate * world_size()):
        raise ConfigError(f"--batch-size {batch_size} does not divide into {accumulate} parts on {world_size()} ranks")
    steps = len(source) // batch_size
    if not steps:
        raise DataError(
            f"{source.spec} has {len(source)} images, fewer than a batch of {batch_size}: lower --batch-size"
        )
    lr = scaled_lr(base_lr, batch_size)
    warmup = epochs / 10 if warmup_epochs is None else warmup_epochs
    log_info(f"learning rate {lr:g} = {base_lr:g} · {batch_size} / 256, {epochs} epochs of {steps} steps")
    return Settings(
        epochs=epochs,
        steps_per_epoch=steps,
        images_per_step=batch_size,
        lr=lr,
        warmup_steps=round(warmup * steps),
        min_lr=min_lr,
        accumulate=accumulate,
        clip=clip,
        seed=seed,
        stop_after=stop_after,
    )
