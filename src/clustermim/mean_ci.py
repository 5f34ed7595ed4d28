"""A mean of a few repetitions, with what can be said of its error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple


class MeanCI(NamedTuple):
    """A mean over repetitions, such as seeds or parts of the images."""

    mean: float
    spread: float | None  # standard deviation between them; None of a single one
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanCI:
        """Of these values; NaN if one of them is."""
        if any(map(math.isnan, values)):
            return cls(math.nan, math.nan, len(values))
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def interval(self) -> tuple[float, float] | None:
        """95 % of Student's t around the mean."""
        if self.spread is None:
            return None
        from scipy.special import stdtrit  # slow to import

        half_width = float(stdtrit(self.number - 1, 0.975)) * self.spread / math.sqrt(self.number)
        return self.mean - half_width, self.mean + half_width

    def minus(self, other: MeanCI) -> Difference:
        """The difference of two means of independent repetitions, with Welch's interval."""
        if self.spread is None or other.spread is None:
            return Difference(self.mean - other.mean, None, (self.number, other.number))
        from scipy.special import stdtrit  # slow to import

        first, second = self.spread**2 / self.number, other.spread**2 / other.number
        degrees = (first + second) ** 2 / (first**2 / (self.number - 1) + second**2 / (other.number - 1) or math.inf)
        half_width = float(stdtrit(degrees, 0.975)) * math.sqrt(first + second) if degrees else 0.0
        mean = self.mean - other.mean
        return Difference(mean, (mean - half_width, mean + half_width), (self.number, other.number))


def newcombe(
    first: float, first_interval: tuple[float, float], second: float, second_interval: tuple[float, float]
) -> tuple[float, float]:
    """95 % interval of the difference of two shares that have Wilson's intervals (Newcombe, 1998, method 10).

    >>> [round(end, 3) for end in newcombe(0.8, (0.7, 0.88), 0.6, (0.49, 0.7))]
    [0.059, 0.336]
    """
    gap = first - second
    down = math.hypot(first - first_interval[0], second_interval[1] - second)
    up = math.hypot(first_interval[1] - first, second - second_interval[0])
    return gap - down, gap + up


class Difference(NamedTuple):
    """A difference of two means."""

    mean: float
    interval: tuple[float, float] | None  # 95 %; None where one of them has a single value
    numbers: tuple[int, int]  # of repetitions
