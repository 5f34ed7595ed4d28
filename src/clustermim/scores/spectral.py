"""The two terms of the paper's bound (its section 2) from real tokens: Σλ² of the mask graph, label error α.

Coarser tokens always lower Σλ² and raise α, so the pair is a trade-off curve, not one number
(docs/theory.md#coarser-tokens).
"""

# ruff: noqa: E741  (l is the codebook size in every formula)

from __future__ import annotations

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used
import torch
from torch import Tensor

from clustermim.count_tables import Input, as_counts, as_table
from clustermim.distributed import all_reduce_sum
from clustermim.errors import DataError
from clustermim.scores.bags import bags
from clustermim.scores.base import check_memory
from clustermim.scores.collect import PAIR, Tokens, renumber
from clustermim.threads import undivided

CHUNK = 2**22  # patches, or pairs of patches, that are counted at a time
DENSE = 8  # tokens for each patch of an image, at most, where a dense product is faster than a sparse one
ROW_BLOCK = 1024  # rows of Q handled at a time, to keep temporaries far below an l × l matrix
MOST_TOKENS = 8192  # of a larger codebook only tokens that occur are paired


def alpha(R: Input) -> float:
    """α = 1 − Σ_i Σ_j R_ij²/(R_i· R··): how often two patches with one token differ in class.

    R: (l1, l2) counts. The tokens' Gini impurity weighted by use; the label term of the bound.

    >>> alpha([[2, 0], [1, 1]])
    0.25
    """
    table = as_table(R)
    rows = table.sum(axis=1)
    seen = rows > 0
    purity = np.einsum("ij,ij->i", table[seen], table[seen]) / rows[seen]
    return float(1 - purity.sum() / rows.sum())


@undivided()
def pair_counts(ids: Tensor, l: int) -> Tensor:
    """How often two different patches of one image carry tokens S and S': Σ over images of (r rᵀ − diag r).

    ids: (images, T) in 0..l-1. Returns (l, l) int64; r is the token histogram of an image.

    >>> pair_counts(torch.tensor([[0, 0, 1]]), 2).tolist()
    [[2, 2], [2, 0]]
    """
    pairs, patches = np.diag(-np.bincount(ids.flatten(), minlength=l)), ids.shape[1]
    if l <= DENSE * patches and patches**2 <= CHUNK:
        for chunk in torch.split(ids, max(1, CHUNK // patches**2)):  # so few that float32 counts exactly
            counts = bags(chunk, l)
            pairs += (counts.t() @ counts).long().numpy()
        return torch.from_numpy(pairs)
    for chunk in torch.split(ids, max(1, CHUNK // patches)):
        image = np.repeat(np.arange(len(chunk)), patches)
        cells = (np.ones_like(image), (image, chunk.flatten().numpy()))
        histograms = scipy.sparse.csr_array(cells, shape=(len(chunk), l))
        pairs += (histograms.T @ histograms).toarray()
    return torch.from_numpy(pairs)


def cooccurrence_sum_sq(Q: Input) -> float:
    """Σλ² = Σ_{S,S'} Q(S,S')²/(p_S p_S') with p the row sums; tokens never used are left out.

    Q: (l, l) symmetric, at any scale, such as `pair_counts`. No eigenvalue is computed.

    >>> cooccurrence_sum_sq([[0.5, 0.0], [0.0, 0.5]])
    2.0
    """
    table = as_counts(Q, "the co-occurrence table", 2)
    if table.shape[0] != table.shape[1]:
        raise DataError(f"the co-occurrence table must be square, not of shape {table.shape}")
    mass = table.sum(axis=1)
    if not np.allclose(mass, table.sum(axis=0), rtol=1e-9, atol=1e-12 * mass.sum()):
        raise DataError("the co-occurrence table must be symmetric")
    inverse = np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)
    blocks = (slice(start, start + ROW_BLOCK) for start in range(0, len(table), ROW_BLOCK))
    return float(sum(inverse[rows] @ (table[rows] ** 2 @ inverse) for rows in blocks))


def sum_sq_half(first: Tensor, second: Tensor) -> float:
    """Σλ² corrected for the number of images, from the pair counts (l, l) of two halves of them: 2·full − mean of both.

    The plug-in value is too large by O(l²/images), and twice as much so on half of them.
    """
    halves = (cooccurrence_sum_sq(first) + cooccurrence_sum_sq(second)) / 2
    return 2 * cooccurrence_sum_sq(first + second) - halves


def sum_sq(tokens: Tokens) -> float:
    """Σλ² of all pairs of patches of an image, corrected by halves of the images."""
    if tokens.patches < 2:
        raise DataError("images of one patch have no pairs of patches")
    (ids, where), size = tokens.ids, tokens.vocab_size
    if size > MOST_TOKENS:
        ids, size = renumber(ids, tokens.frequencies)
    check_memory(PAIR * size**2, f"pairs of {size:,} tokens")
    second = tokens.groups[where] % 2
    if not all_reduce_sum(torch.from_numpy(np.bincount(second, minlength=2))).all():
        raise DataError("a single image, or images of one group only, cannot be halved")
    pairs = [pair_counts(torch.from_numpy(ids[second == half]).long(), size) for half in range(2)]
    return sum_sq_half(*map(all_reduce_sum, pairs))
