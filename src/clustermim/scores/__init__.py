"""Scores of discrete tokens: pure functions on count tables, and thin metric classes that fill them."""

from clustermim.count_tables import TableSummary, table_summary
from clustermim.scores.codebook import nmi, perplexity, usage
from clustermim.scores.debiased import tcas_fourfold, tcas_unbiased
from clustermim.scores.modules import TCAS, CooccurrenceResult, TokenClassTable, TokenCooccurrence
from clustermim.scores.patch_mi import by_places, mutual_information, patch_mi
from clustermim.scores.spectral import alpha, class_level, cooccurrence, cooccurrence_sum_sq, sum_sq_half
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
from clustermim.scores.tcas_report import TCASReport, assess

__all__ = [
    "TCAS",
    "CooccurrenceResult",
    "Diag",
    "Empty",
    "Norm",
    "TCASReport",
    "TCASVariant",
    "TableSummary",
    "TokenClassTable",
    "TokenCooccurrence",
    "alpha",
    "assess",
    "by_places",
    "class_level",
    "cooccurrence",
    "cooccurrence_sum_sq",
    "mutual_information",
    "nmi",
    "patch_mi",
    "perplexity",
    "sum_sq_half",
    "table_summary",
    "tcas",
    "tcas_adjusted",
    "tcas_capacity",
    "tcas_chance",
    "tcas_fourfold",
    "tcas_range",
    "tcas_unbiased",
    "usage",
]
