"""The stages that make tokenizers, `clustermim fit …`, and `clustermim tokenize`."""

from clustermim.stages.fit.external import fit_external
from clustermim.stages.fit.kmeans import fit_kmeans
from clustermim.stages.fit.learned import fit_dvae, fit_fsq, fit_lfq, fit_random_projection
from clustermim.stages.fit.reference import fit_labels, fit_random
from clustermim.stages.fit.tokenize import tokenize_source
from clustermim.stages.fit.toy import fit_toy
from clustermim.stages.fit.vq import fit_peco, fit_vq, fit_vqgan

__all__ = [
    "fit_dvae",
    "fit_external",
    "fit_fsq",
    "fit_kmeans",
    "fit_labels",
    "fit_lfq",
    "fit_peco",
    "fit_random",
    "fit_random_projection",
    "fit_toy",
    "fit_vq",
    "fit_vqgan",
    "tokenize_source",
]
