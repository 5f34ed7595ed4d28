"""The one training loop. It receives a step function and batches, and knows no model.

A run can end at any moment, and a later process continues it to the same bytes: what the steps draw depends on seed and
place in the data (`batches(epoch, start)`), or on generators whose states the checkpoint holds.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clustermim.cost import measure_cost
from clustermim.data.source import prefetch
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError, RunError, UserError, WriteError
from clustermim.progress import log_info
from clustermim.reading import check_shape
from clustermim.runs import Run
from clustermim.training.checkpoint import CHECKPOINT, DAMAGED, checkpoints, load_newest, name_newest, save_checkpoint
from clustermim.training.display import Display
from clustermim.training.interrupts import SIGNALS, PendingSignal, Stopped, deferred_interrupts
from clustermim.training.optimizer import lr_at, set_lr
from clustermim.training.parts import Share, backward_in_parts, count_parts
from clustermim.training.randomness import generator_states, restore_generators, seed_generators
from clustermim.training.sharding import full_tensor
from clustermim.training.state import Settings, State
from clustermim.training.trackers import Sink, Tracker, open_sinks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Step = Callable[[nn.Module, Any], dict[str, Tensor]]  # model and batch → "loss" and other scalars to log
Batches = Callable[[int, int], Iterator[Any]]  # epoch and batches to leave out → the others of this rank
Split = Callable[[Any, int], list[Share]]  # a batch and how many parts → those that threads compute at once
AfterStep = Callable[[nn.Module, int], None]  # the plain model and steps done → it is changed
AfterEpoch = Callable[[int], Mapping[str, float]]  # epochs done → values for metrics.jsonl


class TrainResult(NamedTuple):
    """What a finished training has to say."""

    steps: int
    final: dict[str, float]  # means over the last epoch
    seconds: float  # of all processes that worked on the run; saving and evaluating not included
    images_per_second: float
    data_share: float  # part of the time in which the model waited for data
    cpu_seconds: float  # of all threads and ranks
    flops: float  # of all matrix products, as many in every step as in the first; 0 of a compiled model
    history: list[dict[str, Any]]  # the lines of metrics

    def summary(self) -> dict[str, float]:
        """The same as a summary holds it."""
        return {
            **self.final,
            "steps": self.steps,
            "training_seconds": round(self.seconds, 1),
            "images_per_second": round(self.images_per_second, 1),
            "data_share": round(self.data_share, 4),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "flops": self.flops,
        }


@dataclass
class Loop:
    """Trains from the run's checkpoint, or from the start when it has none, to the end of the schedule.

    `step(model, batch)` gets the model as Fabric wrapped it and returns at least {"loss": mean over the batch}.
    `batches(epoch, start)` gives equal batches, from number `start` on; what is in them depends on seed, epoch, number.
    A checkpoint goes on with the `inputs`, hashes of what is learned from, that it was made with, and with no others.
    """

    step: Step
    batches: Batches
    plain_model: nn.Module
    plain_optimizer: Optimizer
    settings: Settings
    run: Run | None
    fabric: Fabric
    trackers: Sequence[Tracker] = ()
    after_epoch: AfterEpoch = lambda epoch: {}
    inputs: Mapping[str, str] = field(default_factory=dict)
    split: Split = lambda batch, parts: [(1.0, batch)]
    save_epoch: Callable[[Path], None] = lambda folder: None
    after_step: AfterStep = lambda model, step: None

    def __post_init__(self) -> None:
        self.model = self.fabric.setup_module(self.plain_model)
        self.optimizer = cast(Any, self.fabric.setup_optimizers(self.plain_optimizer))
        compiled = self.plain_model
        self.plain_model = getattr(compiled, "_orig_mod", compiled)  # torch.compile changes the names
        self.is_compiled = self.plain_model is not compiled  # its products cannot be counted
        self.weights = [weight for weight in self.plain_model.parameters() if weight.requires_grad]
        alone = self.fabric.device.type == "cpu" and world_size() == 1 and not self.is_compiled
        self.parts = count_parts(self.weights, self.settings.images_per_batch) if alone else 1
        self.state, self.asked = State(), PendingSignal()
        self.pending: list[tuple[float, Mapping[str, Tensor]]] = []  # learning rate and values of steps not yet read
        self.sinks: list[Sink] = []
        self.history: list[dict[str, Any]] = []
        self.loss = math.nan  # of the last step that was read
        self.saved: int | None = None  # the step of the checkpoint on disk
        self.saved_at = time.monotonic()

    def train(self) -> TrainResult:
        """Train to the end.

        Leaves with `Stopped` after Ctrl-C (130), SIGTERM (143), SIGHUP (129) or `settings.stop_after` epochs (0), the
        checkpoint saved. Without a run nothing is written, and Ctrl-C is a KeyboardInterrupt.
        """
        self.begin()
        state, settings = self.state, self.settings
        try:
            with ExitStack() as stack:
                if self.run is not None:
                    self.sinks = stack.enter_context(open_sinks(self.trackers, self.run, state.step))
                self.display = stack.enter_context(Display(settings, state.step))
                if self.run is not None:
                    self.asked = stack.enter_context(deferred_interrupts())
                batches = stack.enter_context(closing(prefetch(self._coming())))  # no thread reads ahead after the end
                while state.step < settings.total_steps:
                    self.epoch(batches)
        except Stopped:  # said here, where no live bar is in the way
            place = f"saved in {self.run.out}; --resume continues" if self.run else ""
            log_info(f"stopped after step {state.step} of {settings.total_steps}, {place}")
            raise
        if self.run is not None:
            folder = self.run.folder
            name_newest(folder)
            self.run.disposable = [*checkpoints(folder)[1:], *folder.glob(f"*{DAMAGED}")]
        seconds = max(state.seconds, 1e-9)  # a checkpoint may say that it took none
        rate = settings.total_steps * settings.images_per_step / seconds
        share = state.data_seconds / seconds
        cost = torch.tensor([state.cpu_seconds, state.step_flops * state.step], dtype=torch.float64)
        cpu_seconds, flops = all_reduce_sum(cost).tolist()
        return TrainResult(state.step, state.final, state.seconds, rate, share, cpu_seconds, flops, self.history)

    def begin(self) -> None:
        """Load the checkpoint, or start the generators."""
        if self.run is None or not checkpoints(self.run.folder):
            seed_generators(self.settings.seed)
        else:
            self._resume(self.run)
        if self.run is not None:
            step = torch.tensor(float(self.state.step), device=self.fabric.device)
            if float(all_reduce_sum(step)) != self.state.step * world_size():
                raise RunError(f"not every rank sees the checkpoint in {self.run.folder}: use a folder that all share")
            self.history = self.run.rewind(self.state.step)
        self.logged = (self.state.step, self.state.seconds, self.state.data_seconds)

    def _resume(self, run: Run) -> None:
        path = run.folder / CHECKPOINT
        record, generators = load_newest(run.folder, self.plain_model, self.plain_optimizer)
        for name, value in self._place().items():
            if record.get(name) != value:
                raise RunError(f"{path} was made with {name} {record.get(name)}, not {value}: it cannot be resumed")
        check_shape(record, {"inputs": {str: str}, str: object}, str(path), RunError)
        for name, value in (record.get("inputs") or {}).items():
            if self.inputs.get(name) != value:
                raise RunError(f"the {name} is not what {run.out} was begun with; bring it back, or --overwrite")
        self.state = State.restored(record.get("state") or {}, str(path))
        if self.state.step > self.settings.total_steps:
            raise RunError(
                f"{path} is of step {self.state.step}, and the training has {self.settings.total_steps} steps"
            )
        try:
            restore_generators(generators, self.fabric.device, self.state.step)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError, struct.error) as error:
            raise RunError(f"{path} is damaged: its states of random generators cannot be used") from error
        self.saved = self.state.step
        log_info(f"continuing after step {self.state.step} of {self.settings.total_steps}")

    def _coming(self) -> Iterator[Any]:
        """The batches from where the state stands to the end: those of an epoch are ready when the last one ends."""
        parts, steps, done = self.settings.accumulate, self.settings.steps_per_epoch, self.state.step
        for step in range(done - done % steps, self.settings.total_steps, steps):
            epoch, found = step // steps, max(0, done - step) * parts
            for batch in islice(self.batches(epoch, found), steps * parts - found):
                found += 1
                yield batch
            if found < steps * parts:
                raise DataError(f"epoch {epoch + 1} gave {found} batches of the {steps * parts} that an epoch has")

    def epoch(self, batches: Iterator[Any]) -> None:
        """The epoch at hand, from where the state stands in it."""
        self.model.train()
        for _ in range(self.state.step % self.settings.steps_per_epoch, self.settings.steps_per_epoch):
            self._update(batches)
            self._record()
            self._keep_or_stop()

    def _update(self, batches: Iterator[Any]) -> None:
        """One optimizer step. What it gives stays on the device until it is read, so that a GPU never waits for us."""
        start, settings, state = time.perf_counter(), self.settings, self.state
        cpu = time.process_time()
        self.lr = lr_at(
            state.step,
            lr=settings.lr,
            total_steps=settings.total_steps,
            warmup_steps=settings.warmup_steps,
            min_lr=settings.min_lr,
        )
        set_lr(self.plain_optimizer, self.lr)
        if state.step or self.is_compiled:
            values, waited = self._gradients(batches)
        else:
            with measure_cost() as cost:
                values, waited = self._gradients(batches)
            state.step_flops = cost["flops"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after_step(self.plain_model, state.step + 1)
        self.pending.append((self.lr, values))
        seconds = time.perf_counter() - start
        state.step += 1
        state.seconds += seconds
        state.data_seconds += waited
        state.cpu_seconds += time.process_time() - cpu
        if self.fabric.device.type == "cpu":  # where reading costs nothing
            self._read()
        self.display.show(state.step, self.loss, self.lr, seconds, waited)

    def _gradients(self, batches: Iterator[Any]) -> tuple[dict[str, Tensor], float]:
        """Accumulate and clip the gradients of a step; means with the norm before clipping, and seconds of waiting."""
        parts, waited, settings = [], 0.0, self.settings
        for part in range(settings.accumulate):
            start = time.perf_counter()
            batch = self.fabric.to_device(next(batches))
            waited += time.perf_counter() - start
            shares = self.split(batch, self.parts) if self.parts > 1 else []
            if len(shares) > 1:
                values = backward_in_parts(
                    partial(self.step, self.model), shares, self.weights, 1 / settings.accumulate
                )
            else:
                with self.fabric.no_backward_sync(self.model, enabled=part < settings.accumulate - 1):
                    values = self.step(self.model, batch)
                    self.fabric.backward(values["loss"] / settings.accumulate)
            parts.append(torch.stack([value.detach().float() for value in values.values()]))
        limit = settings.clip or math.inf  # at infinity the norm is measured and the gradients stay as they are
        norm = self.fabric.clip_gradients(self.model, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        means = all_reduce_sum(torch.stack(parts).mean(dim=0)) / world_size()  # (values,)
        return {**dict(zip(values, means, strict=True)), "grad_norm": full_tensor(cast(Tensor, norm)).float()}, waited

    def _read(self) -> None:
        """Read what the last steps gave, in one piece, and stop at the first that is not finite."""
        if not self.pending:
            return
        start = time.perf_counter()  # here a GPU is waited for, whose steps were only begun
        rows = torch.stack([torch.stack(list(values.values())) for _, values in self.pending]).tolist()
        self.state.seconds += time.perf_counter() - start
        first = self.state.step - len(rows)
        for step, (row, (lr, values)) in enumerate(zip(rows, self.pending, strict=True), first + 1):
            means = dict(zip(values, row, strict=True))
            self._check_finite(means, lr, step)
            self.state.window.add(means)
            self.state.epoch.add(means)
            self.loss = means["loss"]
        self.pending.clear()

    def _check_finite(self, means: Mapping[str, float], lr: float, step: int) -> None:
        if math.isfinite(means["loss"]) and math.isfinite(means["grad_norm"]):
            return
        epoch = (step - 1) // self.settings.steps_per_epoch + 1
        kept = "no checkpoint was saved before it"
        if self.run is not None and self.saved is not None:
            kept = f"the checkpoint of step {self.saved} in {self.run.folder} is kept, for --init-from"
        others = {name: value for name, value in means.items() if name not in ("loss", "grad_norm")}
        broken = "".join(f", {name} {value}" for name, value in others.items() if not math.isfinite(value))
        raise UserError(
            f"training broke at step {step} (epoch {epoch}): loss {means['loss']:.4g}, learning rate {lr:.3g}, "
            f"gradient norm {means['grad_norm']:.4g}{broken}; {kept}; lower the learning rate, warm up longer or clip "
            "gradients"
        )

    def _record(self) -> None:
        """Write a line of metrics now and then and at the end of an epoch."""
        state, settings = self.state, self.settings
        line: dict[str, Any] = {"step": state.step, "epoch": (state.step - 1) // settings.steps_per_epoch + 1}
        ended = state.step % settings.steps_per_epoch == 0
        if not ended and state.step % settings.log_every:
            return
        self._read()
        line |= {**state.window.take(), "lr": self.lr}
        if ended:
            state.final = state.epoch.take()
            line |= {f"epoch_{name}": value for name, value in state.final.items()}
            measured = self.after_epoch(line["epoch"])
            line |= measured
            self.display.note(line["epoch"], measured)
            if self.run is not None and settings.save_every and line["epoch"] % settings.save_every == 0 and not rank():
                self.save_epoch(self.run.folder / f"epoch-{line['epoch']}")
            self.model.train()  # an evaluation may have changed it
        self.history.append(line)
        if self.run is not None:
            self.run.log(**line)
        self._track(line)

    def _track(self, line: Mapping[str, float]) -> None:
        """The same line for the trackers, with the speed: metrics.jsonl holds only what repeats exactly."""
        steps, seconds, waited = self.logged
        self.logged = (self.state.step, self.state.seconds, self.state.data_seconds)
        seconds, waited = self.state.seconds - seconds, self.state.data_seconds - waited
        rate = (self.state.step - steps) * self.settings.images_per_step / seconds
        for sink in self.sinks:
            sink.log(self.state.step, {**line, "images_per_second": rate, "data_share": waited / seconds})

    def _keep_or_stop(self) -> None:
        """Save a checkpoint when it is time, and leave when asked to; all ranks decide alike."""
        if self.run is None:
            return
        step, settings = self.state.step, self.settings
        overdue = rank() == 0 and time.monotonic() - self.saved_at >= settings.checkpoint_seconds
        asked = [self.asked.signal == number for number in SIGNALS]
        flags = torch.tensor([overdue, *asked], dtype=torch.float32)  # on the CPU, where nothing waits for a GPU
        due, *heard = (flag > 0 for flag in all_reduce_sum(flags).tolist())
        ended = step == settings.total_steps
        pause = settings.stop_after is not None and step == settings.stop_after * settings.steps_per_epoch and not ended
        if any(heard) or due or ended or pause:
            self._read()
            self._save(self.run)
        if any(heard) or pause:
            raise Stopped(next((128 + number for number, flag in zip(SIGNALS, heard, strict=True) if flag), 0))

    def _save(self, run: Run) -> None:
        generators = generator_states(self.fabric.device)  # every rank has its part in them
        path = run.folder / CHECKPOINT
        record = {**self._place(), "inputs": dict(self.inputs), "state": self.state.record()}
        try:
            save_checkpoint(path, self.plain_model, self.plain_optimizer, generators, record, self.settings.keep)
        except WriteError as error:
            kept = "" if self.saved is None else f"; the one of step {self.saved} is kept, add --resume to go on"
            raise RunError(f"cannot save {error.path} of step {self.state.step}: {error.reason}{kept}") from error
        self.saved, self.saved_at = self.state.step, time.monotonic()

    def _place(self) -> dict[str, int]:
        """What the place of a step in the data depends on."""
        settings = self.settings
        return {"steps_per_epoch": settings.steps_per_epoch, "accumulate": settings.accumulate}
