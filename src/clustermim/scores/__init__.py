"""Scores of tokenizers, before any training: `score` and its one table `SCORES`; pure functions on count tables."""

from clustermim.scores.base import Score, Value
from clustermim.scores.codebook import nmi, perplexity
from clustermim.scores.collect import Tokens
from clustermim.scores.spectral import alpha, cooccurrence_sum_sq, pair_counts, sum_sq_half
from clustermim.scores.table import SCORES, Scores, score
from clustermim.scores.tcas import Diag, Empty, Norm, TCASVariant, tcas, tcas_fourfold

__all__ = [
    "SCORES", "Diag", "Empty", "Norm", "Score", "Scores", "TCASVariant", "Tokens", "Value", "alpha",
    "cooccurrence_sum_sq", "nmi", "pair_counts", "perplexity", "score", "sum_sq_half", "tcas", "tcas_fourfold",
]  # fmt: skip
