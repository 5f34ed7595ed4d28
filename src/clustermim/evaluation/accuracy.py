"""Accuracy with its interval, and what the measurements of an encoder return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clustermim.results import Result, Table, percent

Pooling = Literal["avg", "cls"]
POOLINGS: tuple[Pooling, ...] = ("avg", "cls")  # the mean of the patch tokens, and the class token

_NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on test images with its 95 % interval (Wilson's), and what else defines it."""

    accuracy: float
    interval: tuple[float, float]
    test_images: int
    details: Mapping[str, Any]  # protocol, train_images, classes, …

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, details among the others."""
        counted = {"accuracy": self.accuracy, "interval": list(self.interval), "test_images": self.test_images}
        return {**counted, **self.details}


def accuracy_of(correct: int, total: int, **details: Any) -> Accuracy:
    """Accuracy of so many correct predictions."""
    return Accuracy(correct / total, wilson(correct, total), total, details)


def wilson(correct: int, total: int, z: float = _NORMAL_95) -> tuple[float, float]:
    """The binomial interval of Wilson (1927): the shares p with |correct/total − p| ≤ z·√(p(1−p)/total).

    >>> [round(bound, 4) for bound in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    share, weight = correct / total, z * z / total
    centre = share + weight / 2
    half_width = math.sqrt(weight * (share * (1 - share) + weight / 4))
    return max(0.0, (centre - half_width) / (1 + weight)), min(1.0, (centre + half_width) / (1 + weight))


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """Accuracy by pooling: of the mean of the patch tokens, and of the class token; None where it was not measured."""

    title: str
    avg: Accuracy | None = None
    cls: Accuracy | None = None

    def by_pooling(self) -> dict[str, Accuracy]:
        """The poolings that were measured."""
        return {name: found for name in POOLINGS if (found := getattr(self, name)) is not None}

    def to_dict(self) -> dict[str, Any]:
        """As a summary holds it: accuracy, interval and all that defines them, by pooling."""
        return {name: found.to_dict() for name, found in self.by_pooling().items()}

    def table(self) -> Table:
        """A row a pooling."""
        rows = [
            [name, percent(found.accuracy), " … ".join(map(percent, found.interval)), f"{found.test_images:,}"]
            for name, found in self.by_pooling().items()
        ]
        return Table(self.title, ("pooling", "accuracy", "95 % interval", "test images"), rows)

    def __repr__(self) -> str:
        parts = [f"{name} {percent(found.accuracy)}" for name, found in self.by_pooling().items()]
        return f"<{self.title}: {', '.join(parts)}>"
