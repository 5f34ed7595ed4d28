"""What a score is: one row of the table `SCORES`, whose function gives a value, perhaps with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clustermim.errors import DataError
from clustermim.mean_ci import MeanCI

if TYPE_CHECKING:
    from clustermim.scores.collect import Tokens

MEMORY = 4e9  # bytes that the tables of one score may take


class Value(NamedTuple):
    """A score with its 95 % interval; NaN where it cannot be computed."""

    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""  # why there is no value, or no interval
    parts: tuple[float, ...] = ()  # of equal parts of the images

    @classmethod
    def of(cls, parts: Sequence[float]) -> Value:
        """The mean over parts of the images, with Student's interval."""
        found = MeanCI.of(parts)
        return cls(found.mean, *(found.interval() or (math.nan, math.nan)), parts=tuple(parts))


@dataclass(frozen=True)
class Score:
    """A row of the table of scores. The function raises DataError, with the reason, where there is no value."""

    name: str
    higher_is_better: bool | None  # None: neither
    needs_labels: bool
    meaning: str
    function: Callable[[Tokens], float | Value]
    on_request: bool = False  # a known score to compare with, computed by name or with all of its kind

    def measure(self, tokens: Tokens) -> Value:
        """Its value on these tokens, or NaN and why."""
        try:
            found = tokens.cached(self.function)
        except DataError as error:
            return Value(math.nan, note=str(error))
        return found if isinstance(found, Value) else Value(found)


def check_memory(size: float, what: str) -> None:
    """Refuse what takes more memory than one score may."""
    if size > MEMORY:
        raise DataError(f"{what} would take {size / 1e9:,.0f} GB of memory, more than {MEMORY / 1e9:g} GB")
