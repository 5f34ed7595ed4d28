"""Where a training run stands, in numbers that fit into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from clustermim.distributed import world_size
from clustermim.errors import ConfigError, RunError
from clustermim.reading import Whole, check_shape


@dataclass(frozen=True)
class Settings:
    """How long and how fast to train; whatever differs between stages has no default."""

    epochs: int
    steps_per_epoch: int  # optimizer steps
    images_per_step: int  # over all ranks and accumulated batches; for the rate on display
    lr: float  # the peak
    warmup_steps: int = 0  # stages know how long theirs is
    min_lr: float = 0.0  # as MAE: the last steps average the noise out
    accumulate: int = 1  # batches to a step: more than one only when memory is short
    clip: float | None = None  # MAE trains without; the norm is watched and logged all the same
    seed: int = 0  # any number does; zero is the one people guess
    log_every: int = (
        50  # steps to a line of metrics.jsonl: a readable curve from short runs, small files from long ones
    )
    checkpoint_seconds: float = 300.0  # a kill costs five minutes of work, saving costs under a percent
    keep: int = 2  # checkpoints of an unfinished run: where the newest is damaged, five minutes more are lost
    save_every: int | None = None  # epochs, after each of which the task saves what it has
    stop_after: int | None = None  # epochs of the schedule, to resume later; for queues that give few hours at a time

    def __post_init__(self) -> None:
        for name in ("epochs", "steps_per_epoch", "images_per_step", "accumulate", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.lr > 0 or not 0 <= self.min_lr <= self.lr:
            raise ConfigError(f"the learning rate must fall from lr > 0 to min_lr ≥ 0, not {self.lr} to {self.min_lr}")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"gradients can be clipped to a positive norm, not to {self.clip}")
        if not 0 <= self.warmup_steps < self.total_steps:
            raise ConfigError(f"a warm-up of {self.warmup_steps} steps does not fit into {self.total_steps} steps")
        for name in ("stop_after", "save_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1 epoch, not {getattr(self, name)}")

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def images_per_batch(self) -> int:
        """Images that are computed at once, on one rank."""
        return self.images_per_step // self.accumulate // world_size()


MEANS = Whole({"count": range(2**40), "sums": {str: float}})
STATE = Whole({"step": range(2**40), "window": MEANS, "epoch": MEANS, "final": {str: float}})
STATE |= dict.fromkeys(("seconds", "data_seconds", "cpu_seconds", "step_flops"), float)


@dataclass
class Means:
    """Means of named values over some steps."""

    count: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, values: Mapping[str, float]) -> None:
        """Add the values of one step."""
        self.count += 1
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def take(self) -> dict[str, float]:
        """The means so far, and start anew."""
        means = {name: total / self.count for name, total in self.sums.items()}
        self.count, self.sums = 0, {}
        return means


@dataclass
class State:
    """What is done, what was seen since the last line of metrics, and the time that the steps took."""

    step: int = 0
    window: Means = field(default_factory=Means)
    epoch: Means = field(default_factory=Means)
    final: dict[str, float] = field(default_factory=dict)  # means over the last whole epoch
    seconds: float = 0.0
    data_seconds: float = 0.0  # the part of it that waited for data
    cpu_seconds: float = 0.0  # of all threads of this rank
    step_flops: float = 0.0  # of matrix products in the first step, on this rank

    def record(self) -> dict[str, Any]:
        """Everything as plain numbers."""
        return asdict(self)

    @classmethod
    def restored(cls, record: Mapping[str, Any], where: str) -> State:
        """The state that gave a record, which a file holds."""
        check_shape(record, STATE, where, RunError)
        return cls(**{**record, "window": Means(**record["window"]), "epoch": Means(**record["epoch"])})
