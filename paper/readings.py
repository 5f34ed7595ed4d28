"""What each reading of the TCAS formula can give, beside the 16 values of the paper's appendix table."""

from __future__ import annotations

from dataclasses import dataclass

from clustermim.scores import Diag, Norm, tcas_capacity, tcas_range
from paper.correlation import CLASSES, TABLE

VARIANTS: dict[str, tuple[Norm, Diag]] = {
    "a: softmax, C_ii": ("softmax", "C"),
    "b: softmax, norm": ("softmax", "norm"),
    "c: frequencies, C_ii": ("plain", "C"),
    "d: frequencies, norm": ("plain", "norm"),
}


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
