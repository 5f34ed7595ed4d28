"""Scores of tokenizers, before any training: `score` and its one table `SCORES`; pure functions on count tables."""

from typing import Any

from clustermim.scores.base import Score, Value
from clustermim.scores.codebook import nmi, perplexity, usage
from clustermim.scores.collect import Tokens
from clustermim.scores.debiased import tcas_fourfold, tcas_unbiased
from clustermim.scores.patch_mi import by_positions, mutual_information, patch_mi
from clustermim.scores.spectral import alpha, class_level, cooccurrence, cooccurrence_sum_sq, sum_sq_half
from clustermim.scores.table import SCORES, Scores, score
from clustermim.scores.tcas import (
    Diag,
    Empty,
    Norm,
    TCASVariant,
    tcas,
    tcas_adjusted,
    tcas_capacity,
    tcas_chance,
    tcas_range,
)

__all__ = [
    "SCORES", "TCAS", "Diag", "Empty", "Norm", "Score", "Scores", "TCASVariant", "Tokens", "Value",
    "alpha", "by_positions", "class_level", "cooccurrence", "cooccurrence_sum_sq", "mutual_information", "nmi",
    "patch_mi", "perplexity", "score", "sum_sq_half", "tcas", "tcas_adjusted", "tcas_capacity",
    "tcas_chance", "tcas_fourfold", "tcas_range", "tcas_unbiased", "usage",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "TCAS":  # needs torchmetrics, which is slow to import
        from clustermim.scores.metric import TCAS

        return TCAS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
