"""The stages that make tokenizers, `clustermim fit …`, and `clustermim tokenize`."""

from clustermim.fit.kmeans import fit_kmeans
from clustermim.fit.reference import fit_labels, fit_random
from clustermim.fit.tokenize import tokenize_source
from clustermim.fit.toy import fit_toy

__all__ = ["fit_kmeans", "fit_labels", "fit_random", "fit_toy", "tokenize_source"]
