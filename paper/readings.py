"""What each reading of the TCAS formula can give, beside the 16 values of the paper's appendix table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clustermim.scores import Diag, Norm
from paper.correlation import CLASSES, TABLE

VARIANTS: dict[str, tuple[Norm, Diag]] = {
    "a: softmax, C_ii": ("softmax", "C"),
    "b: softmax, norm": ("softmax", "norm"),
    "c: frequencies, C_ii": ("plain", "C"),
    "d: frequencies, norm": ("plain", "norm"),
}


def tcas_range(l1: int, l2: int, norm: Norm = "plain", diag: Diag = "C", tau: float = 1.0) -> tuple[float, float]:
    """The interval a variant of TCAS can move in, over all tables of l1 used tokens and l2 classes.

    A profile's smallest entry m is 0 (plain) or 1/(e^(1/τ) + l2 − 1) (softmax), so its Σ p² lies between 1/l2 and the
    value b of a pure token, and two profiles have ⟨p, p'⟩ ≥ 2m − l2·m². Hence, with square roots of q and b in the
    first terms for diag="norm",

        high = max over q in {1/l2, b} of (1 − q)² + (1 − 1/l1)·q², reached by l1 equal profiles
        low  = (1 − b)² + (1 − 1/l1)·(2m − l2·m²)², reached by distinct pure tokens when l1 ≤ l2

    For more tokens than classes `low` is a lower bound, sharpened to δ/(1 + δ), δ = 1/l2 − 1/l1, for plain with C_ii.

    >>> low, high = tcas_range(50, 100, "softmax")
    >>> round(low, 5), round(high, 5)
    (0.97964, 0.9802)
    """
    weight = math.exp(-1 / tau) if norm == "softmax" else 0.0  # of a class absent from a pure token
    least = weight / (1 + (l2 - 1) * weight)
    most = 1 - (l2 - 1) * least
    pure = most**2 + (l2 - 1) * least**2

    def equal_profiles(purity: float, off_diagonal: float) -> float:
        inner = purity if diag == "C" else math.sqrt(purity)
        return (1 - inner) ** 2 + (1 - 1 / l1) * off_diagonal**2

    low = equal_profiles(pure, 2 * least - l2 * least**2)
    if l1 > l2 and norm == "plain" and diag == "C":
        gap = 1 / l2 - 1 / l1
        low = gap / (1 + gap)
    return low, max(equal_profiles(1 / l2, 1 / l2), equal_profiles(pure, pure))


def tcas_capacity(usage: ArrayLike, prior_max: float) -> float:
    """The least TCAS that this usage of the codebook allows: mean_i (1 − min(1, π_max / w_i))².

    usage: (l,) token shares or counts; tokens never used do not count. A token used by a share w_i of all
    patches cannot be pure when no class is that large. Plain frequencies.

    >>> round(tcas_capacity([1] * 10, 0.01), 6)
    0.81
    """
    weights = np.asarray(usage, dtype=np.float64)
    weights = weights[weights > 0] / weights.sum()
    return float(np.mean((1 - np.minimum(1, prior_max / weights)) ** 2))


@dataclass(frozen=True)
class ReadingRange:
    """The interval of one reading over all tables with the codebook sizes of the paper's table."""

    variant: str
    classes: int
    low: float
    high: float
    possible: int | None  # how many of the 16 values lie in the interval of their own K; 100 classes only


def table_range(norm: Norm, diag: Diag, classes: int = CLASSES) -> tuple[float, float]:
    """Smallest and largest attainable score over the codebook sizes of the paper's table."""
    ranges = [tcas_range(k, classes, norm, diag) for k in sorted({row.k for row in TABLE})]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def possible(norm: Norm, diag: Diag) -> int:
    """How many of the 16 printed values this reading can give at all, each with its own codebook size."""
    ranges = [(row.tcas, *tcas_range(row.k, CLASSES, norm, diag)) for row in TABLE]
    return sum(low - 0.005 <= value <= high + 0.005 for value, low, high in ranges)  # printed to two decimals


def nearest(norm: Norm, diag: Diag) -> tuple[float, float]:
    """(value, score): the printed value that comes closest to what this reading can give, and the closest score."""
    pairs = []
    for row in TABLE:
        low, high = tcas_range(row.k, CLASSES, norm, diag)
        pairs.append((row.tcas, min(max(row.tcas, low), high)))
    return min(pairs, key=lambda pair: abs(pair[0] - pair[1]))


def reading_ranges() -> list[ReadingRange]:
    """Every reading at 10, 100 and 1000 classes."""
    return [
        ReadingRange(
            name, classes, *table_range(norm, diag, classes), possible(norm, diag) if classes == CLASSES else None
        )
        for name, (norm, diag) in VARIANTS.items()
        for classes in (10, CLASSES, 1000)
    ]


@dataclass(frozen=True)
class Capacity:
    """The least score that an evenly used codebook allows with 100 balanced classes, reading c."""

    k: int
    method: str
    printed: float
    least: float


def capacity_conflicts() -> list[Capacity]:
    """Rows of the table that are below what even use of their codebook allows: mass 1/K is at least 100/K classes."""
    rows = [Capacity(row.k, row.method, row.tcas, tcas_capacity([1] * row.k, 1 / CLASSES)) for row in TABLE]
    return [row for row in rows if row.printed < row.least - 0.005]
