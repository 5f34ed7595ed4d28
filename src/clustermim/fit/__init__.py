"""The stages that make tokenizers, `clustermim fit …`, and `clustermim tokenize`."""

from clustermim.fit.kmeans import fit_kmeans
from clustermim.fit.reference import fit_labels, fit_random
from clustermim.fit.tokenize import tokenize_source

__all__ = ["fit_kmeans", "fit_labels", "fit_random", "tokenize_source"]
