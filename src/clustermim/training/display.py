"""How training shows itself: loss, learning rate, images a second, waiting for data, time left. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from clustermim.distributed import rank
from clustermim.progress import LINE_EVERY, log_info
from clustermim.training.state import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

NOTED = 4  # measured values in the line


class Display:
    """A live bar on a terminal, a plain line now and then in a log."""

    def __init__(self, settings: Settings, done: int) -> None:
        self.settings, self.first, self.shown_at = settings, done, time.monotonic()
        self.seconds = 0.0  # spent on steps since the start
        self.recent = [0.0, 0.0, 0.0]  # steps, seconds and seconds of waiting since the last look
        self.noted = ""  # what was measured last
        self.bar: Progress | None = None
        if sys.stderr.isatty() and rank() == 0:
            from rich.console import Console  # slow to import, and of no use in a log
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(20), TextColumn("{task.fields[text]}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("", total=settings.total_steps, completed=done, epoch="", text="")

    def __enter__(self) -> Display:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def note(self, epoch: int, values: Mapping[str, float]) -> None:
        """Say what was measured after an epoch, and show it from now on: the first few, which fit on a line."""
        few = [f"{name.removeprefix('watch_')} {value:.3g}" for name, value in list(values.items())[:NOTED]]
        self.noted = "".join(f", {text}" for text in few) or self.noted
        if few and not self.bar:
            log_info(f"epoch {epoch}/{self.settings.epochs}: {', '.join(few)}")

    def show(self, step: int, loss: float, lr: float, seconds: float, data_seconds: float) -> None:
        """Take one step into account; `seconds` includes `data_seconds`."""
        self.seconds += seconds
        self.recent = [a + b for a, b in zip(self.recent, (1, seconds, data_seconds), strict=True)]
        if time.monotonic() - self.shown_at < (0.5 if self.bar else LINE_EVERY):  # a terminal is read twice a second
            return
        self.shown_at, total = time.monotonic(), self.settings.total_steps
        steps, taken, waited = self.recent
        self.recent = [0.0, 0.0, 0.0]
        rate = steps * self.settings.images_per_step / taken
        left = timedelta(seconds=round(self.seconds / (step - self.first) * (total - step)))
        text = f"loss {loss:.4f}, lr {lr:.2e}, {rate:,.0f} images/s, data {waited / taken:.0%}, {left} left"
        text += self.noted
        epoch = f"{(step - 1) // self.settings.steps_per_epoch + 1}/{self.settings.epochs}"
        if self.bar:
            self.bar.update(self.task, completed=step, epoch=epoch, text=text)
        else:
            log_info(f"epoch {epoch}, step {step}/{total}: {text}")
