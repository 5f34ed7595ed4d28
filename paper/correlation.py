"""The paper's appendix table of 16 tokenizers, and what its correlation of TCAS with accuracy really is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Published(NamedTuple):
    """One row of the table in appendix E (ImageNet-100, 100 classes, ViT-S, 200 epochs)."""

    k: int
    method: str
    tcas: float
    probe: float
    finetune: float
    kmeans_epochs: int = 100


TABLE = (
    Published(10, "Pixel", 0.69, 42.7, 81.9),
    Published(25, "Pixel", 0.60, 48.3, 84.6),
    Published(50, "Pixel", 0.66, 47.2, 82.1, 1),
    Published(50, "Pixel", 0.56, 52.5, 85.9, 10),
    Published(50, "Pixel", 0.56, 52.7, 86.4),
    Published(50, "DINO", 0.21, 58.2, 84.3),
    Published(100, "Pixel", 0.52, 50.1, 83.7),
    Published(100, "MAE", 0.34, 52.3, 83.2),
    Published(100, "DINO", 0.15, 59.7, 84.7),
    Published(100, "DeiT", 0.09, 64.8, 83.1),
    Published(200, "Pixel", 0.49, 50.8, 84.8),
    Published(1000, "Pixel", 0.39, 50.6, 84.4),
    Published(1000, "DINO", 0.12, 56.9, 85.1),
    Published(1024, "VQGAN", 0.77, 44.3, 80.9),
    Published(8192, "dVAE", 0.86, 41.2, 80.2),
    Published(8192, "Perceptual", 0.69, 50.3, 83.1),
)
CLASSES = 100
PECO_PROBE = 53.2  # the Perceptual row's linear probe as table 1 prints it


@dataclass(frozen=True)
class Correlation:
    """TCAS against an accuracy over some rows of the table. Intervals and p that do not exist are None."""

    rows: str
    accuracy: str
    count: int
    pearson: float
    low: float | None  # 95 %, Fisher's z
    high: float | None
    p: float | None  # two-sided, Student t
    r_squared: float
    spearman: float
    kendall: float


def correlate(rows: str, accuracy: str, x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Every coefficient of two lists of at least three numbers."""
    from scipy import stats  # here: its import is slow, and most of the package does without

    r = stats.pearsonr(x, y)
    low, high = r.confidence_interval(0.95) if len(x) > 3 else (None, None)
    spearman, kendall = stats.spearmanr(x, y).statistic, stats.kendalltau(x, y).statistic
    value = float(r.statistic)
    return Correlation(
        rows, accuracy, len(x), value, low, high, float(r.pvalue), value**2, float(spearman), float(kendall)
    )


# The subsets in which the claim is looked at again.
SUBSETS: dict[str, Callable[[Published], bool]] = {
    "all 16 rows": lambda row: True,
    "without DINO and DeiT": lambda row: row.method not in ("DINO", "DeiT"),
    "pixel rows": lambda row: row.method == "Pixel",
    "pixel rows, 100 k-means epochs": lambda row: row.method == "Pixel" and row.kmeans_epochs == 100,
    "pixel rows, 100 epochs, K ≥ 50": lambda row: row.method == "Pixel" and row.kmeans_epochs == 100 and row.k >= 50,
    "DINO rows": lambda row: row.method == "DINO",
}


def table_correlations() -> list[Correlation]:
    """The table's correlations: whole, by family, against fine-tuning, and with table 1's Perceptual row."""
    subsets = {name: [row for row in TABLE if chosen(row)] for name, chosen in SUBSETS.items()}
    results = [
        correlate(name, "linear probe", [row.tcas for row in rows], [row.probe for row in rows])
        for name, rows in subsets.items()
    ]
    scores = [row.tcas for row in TABLE]
    peco = [PECO_PROBE if row.method == "Perceptual" else row.probe for row in TABLE]
    results.append(correlate("all, Perceptual as in table 1", "linear probe", scores, peco))
    results.append(correlate("all 16 rows", "fine-tuning", scores, [row.finetune for row in TABLE]))
    return results


def leave_one_out() -> tuple[float, float]:
    """Smallest and largest Pearson r of TCAS and linear probing when one row is left out."""
    scores, probes = [row.tcas for row in TABLE], [row.probe for row in TABLE]
    values = [np.corrcoef(np.delete(scores, i), np.delete(probes, i))[0, 1] for i in range(len(TABLE))]
    return float(min(values)), float(max(values))
