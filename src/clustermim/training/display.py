"""How training shows itself: loss, learning rate, images a second, waiting for data, time left. Always on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from clustermim.distributed import rank
from clustermim.progress import LINE_EVERY, log_info
from clustermim.training.state import Settings


class Display:
    """A live bar on a terminal, a plain line now and then in a log."""

    def __init__(self, settings: Settings, done: int) -> None:
        self.settings = settings
        self._first = done
        self._seconds = 0.0  # spent on steps since the start
        self._recent = [0.0, 0.0, 0.0]  # steps, seconds and seconds of waiting since the last look
        self._said = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and rank() == 0:
            columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(20), MofNCompleteColumn())
            console = Console(stderr=True)
            self._bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=console, transient=True)
            self._task = self._bar.add_task("", total=settings.total_steps, completed=done, epoch="", text="")

    def __enter__(self) -> Display:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, step: int, loss: float, lr: float, seconds: float, data_seconds: float) -> None:
        """Take one step into account; `seconds` includes `data_seconds`."""
        self._seconds += seconds
        self._recent = [a + b for a, b in zip(self._recent, (1, seconds, data_seconds), strict=True)]
        now = time.monotonic()
        if now - self._said < (0.5 if self._bar else LINE_EVERY):  # a terminal is read twice a second at most
            return
        self._said = now
        text = self._text(step, loss, lr)
        epoch = f"{(step - 1) // self.settings.steps_per_epoch + 1}/{self.settings.epochs}"
        if self._bar:
            self._bar.update(self._task, completed=step, epoch=epoch, text=text)
        else:
            log_info(f"epoch {epoch}, step {step}/{self.settings.total_steps}: {text}")

    def _text(self, step: int, loss: float, lr: float) -> str:
        steps, seconds, waiting = self._recent
        self._recent = [0.0, 0.0, 0.0]
        rate = steps * self.settings.images_per_step / seconds
        left = (self.settings.total_steps - step) * self._seconds / (step - self._first)
        parts = (f"loss {loss:.4f}", f"lr {lr:.2e}", f"{rate:,.0f} images/s", f"data {waiting / seconds:.0%}")
        return ", ".join((*parts, f"{span(left)} left"))


def span(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
