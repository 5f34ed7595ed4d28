"""How a codebook is used: perplexity and mutual information with the classes.

All from counts over a whole set of images. The same numbers averaged over batches mean something else: a
batch cannot use more tokens than it has patches.
"""

from __future__ import annotations

import numpy as np

from clustermim.count_tables import Floats, Input, as_counts, as_table


def perplexity(counts: Input) -> float:
    """exp(−Σ p ln p) of the token shares: how many evenly used tokens would be as diverse. counts: (l,).

    >>> round(perplexity([3, 3, 3, 0]), 12)
    3.0
    """
    return float(np.exp(entropy(as_counts(counts, "the token counts", 1))))


def nmi(R: Input) -> float:
    """Normalised mutual information of tokens and classes, 2·I(token; class)/(H(token) + H(class)).

    R: (l1, l2) counts. Arithmetic normalisation, as scikit-learn's default; one token and one class give 1.

    >>> nmi([[3, 0], [0, 3]])
    1.0
    """
    table = as_table(R)
    token_entropy, class_entropy = entropy(table.sum(axis=1)), entropy(table.sum(axis=0))
    if token_entropy + class_entropy == 0:
        return 1.0
    information = token_entropy + class_entropy - entropy(table.ravel())
    return float(np.clip(2 * information / (token_entropy + class_entropy), 0.0, 1.0))


def entropy(counts: Floats) -> float:
    """Entropy in nats of the distribution proportional to counts."""
    shares = counts[counts > 0] / counts.sum()
    return -float(np.sum(shares * np.log(shares)))
