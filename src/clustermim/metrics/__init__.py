"""Scores of discrete tokens: pure functions on count tables, and thin metric classes that fill them."""

from clustermim.metrics.assessment import Assessment, assess
from clustermim.metrics.codebook import nmi, perplexity, usage
from clustermim.metrics.debiased import tcas_fourfold, tcas_unbiased
from clustermim.metrics.kinship import by_places, kinship, mutual_information
from clustermim.metrics.modules import TCAS, CooccurrenceResult, TokenClassTable, TokenCooccurrence
from clustermim.metrics.spectral import alpha, class_level, cooccurrence, cooccurrence_sum_sq, sum_sq_half
from clustermim.metrics.tables import TableSummary, table_summary
from clustermim.metrics.tcas import (
    Diag,
    Empty,
    Norm,
    Reading,
    tcas,
    tcas_adjusted,
    tcas_capacity,
    tcas_chance,
    tcas_range,
)

__all__ = [
    "TCAS",
    "Assessment",
    "CooccurrenceResult",
    "Diag",
    "Empty",
    "Norm",
    "Reading",
    "TableSummary",
    "TokenClassTable",
    "TokenCooccurrence",
    "alpha",
    "assess",
    "by_places",
    "class_level",
    "cooccurrence",
    "cooccurrence_sum_sq",
    "kinship",
    "mutual_information",
    "nmi",
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
