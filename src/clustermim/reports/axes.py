"""Where things go in a chart: scales from values to pixels, round ticks, paths, and labels that do not collide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WIDTH, HEIGHT = 480, 320  # of a chart; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 46  # room around the plot, for ticks and names
LETTER, LINE = 6.6, 14.0  # about the size of a letter of a label

Spot = tuple[float, float, str]  # where a label stands from its point, and by which end
BESIDE: tuple[Spot, ...] = ((8, 4, "start"), (-8, 4, "end"), (0, -9, "middle"), (0, 18, "middle"))
AT_END: tuple[Spot, ...] = ((0, -9, "end"), (0, 17, "end"))  # above or below the end of a line


class Tick(NamedTuple):
    """A place on an axis and its label."""

    place: float
    label: str


class Axis(NamedTuple):
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float  # pixel of `low`
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, count: int = 5) -> list[Tick]:
        """About so many ticks at round values."""
        step = round_step((self.high - self.low) / count)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        values = [step * n for n in range(first, first + 4 * count) if step * n <= self.high + 1e-9 * step]
        return [Tick(self(value), f"{value:,.{digits}f}") for value in values]


class Mark(NamedTuple):
    """A point of a chart."""

    x: float
    y: float
    title: str  # shown when pointed at
    group: str = ""  # points of one group share a label
    low: float | None = None  # pixels of its interval, drawn as a line
    high: float | None = None
    style: str = "point"


class Line(NamedTuple):
    """A line of a chart."""

    path: str
    title: str = ""
    style: str = "line"
    key: int | None = None  # of what it stands for in a legend


class Label(NamedTuple):
    """A text beside a point."""

    x: float
    y: float
    text: str
    anchor: str


@dataclass
class Chart:
    """All that the page needs to draw a chart, in pixels."""

    title: str
    x_name: str
    y_name: str
    x: Axis
    y: Axis
    marks: list[Mark] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    areas: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT


def make_chart(title: str, x_name: str, y_name: str, x: Sequence[float], y: Sequence[float]) -> Chart:
    """An empty chart with room for these values."""
    return Chart(title, x_name, y_name, Axis(*padded(x), LEFT, WIDTH - RIGHT), Axis(*padded(y), HEIGHT - BOTTOM, TOP))


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """The range of some values, a little wider; never empty."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(low) * share or 1.0
    return low - room, high + room


def round_step(step: float) -> float:
    """The first of 1, 2, 5, 10, … that is not much smaller than a step.

    >>> round_step(0.03)
    0.05
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.75 * step)


def to_path(points: Iterable[tuple[float, float]], closed: bool = False) -> str:
    """The path of an SVG through some points."""
    steps = [f"{x:.1f} {y:.1f}" for x, y in points]
    return ("M" + "L".join(steps) + ("Z" if closed else "")) if steps else ""


def place_labels(marks: Sequence[Mark], spots: Sequence[Spot] = BESIDE) -> list[Label]:
    """One label a group at one of these spots of its points, where it covers no other; left out where none is free."""
    taken = [(mark.x - 5, mark.y - 5, mark.x + 5, mark.y + 5) for mark in marks]
    labels: list[Label] = []
    for group in dict.fromkeys(mark.group for mark in marks if mark.group):
        text = group if len(group) <= 24 else group[:23] + "…"
        width = LETTER * len(text)
        places = [
            (mark.x + dx, mark.y + dy, anchor)
            for mark in sorted((m for m in marks if m.group == group), key=lambda m: m.y)
            for dx, dy, anchor in spots
        ]
        for x, y, anchor in places:
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = (left, y - LINE + 3, left + width, y + 3)
            inside = box[0] >= LEFT and box[2] <= WIDTH and box[1] >= 0 and box[3] <= HEIGHT - BOTTOM
            if inside and not any(overlap(box, other) for other in taken):
                taken.append(box)
                labels.append(Label(x, y, text, anchor))
                break
    return labels


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (left, top, right, bottom) share an area."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
