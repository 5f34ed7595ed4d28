"""The two terms of the paper's bound (its section 2) from real tokens: Σλ² of the mask graph, label error α.

Coarser tokens always lower Σλ² and raise α, so the pair is a trade-off curve, not one number
(docs/theory.md#coarser-tokens).
"""

# ruff: noqa: E741  (l is the codebook size in every formula)

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clustermim.count_tables import Floats, Input, as_counts, as_table, as_tokens, gram_sum_sq, to_array
from clustermim.errors import DataError

GEMM_TOKENS_PER_PATCH = 8  # up to this, a product of histograms is faster than visiting every pair of patches
CHUNK = 2**22  # entries of the largest temporary while pairs are counted
ROW_BLOCK = 1024  # rows of Q handled at a time, to keep temporaries far below an l × l matrix


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


def class_level(R: Input) -> tuple[float, float]:
    """(α, ‖L‖_F²): the label term, and a lower bound of Σλ² that needs the table only.

    R: (l1, l2) counts, P = R/R··, p and π its margins. L_kk' = Σ_i P(k,i)P(k',i)/(p_i √(π_k π_k')); ‖L‖_F²
    ≤ Σλ², with equality when view and token are independent given the class.

    >>> class_level([[5, 0, 0], [0, 7, 0], [0, 0, 2]])[0]
    0.0
    """
    table = as_table(R)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    filled = table[np.ix_(rows > 0, columns > 0)]
    scaled = filled / np.sqrt(np.outer(rows[rows > 0], columns[columns > 0]))
    return alpha(table), gram_sum_sq(scaled)


def cooccurrence(tokens: Input, l: int) -> Floats:
    """Q: how often two different patches of one image carry tokens S and S'.

    tokens: (images, T) ids in 0..l-1. Returns (l, l) float64 summing to 1, the mean over images of
    (r rᵀ − diag r)/(T(T − 1)) with r the token histogram of an image.

    >>> cooccurrence([[0, 0, 1]], 2).round(3).tolist()
    [[0.333, 0.333], [0.333, 0.0]]
    """
    ids = as_tokens(tokens, l)
    patches = ids.shape[1]
    pairs: Floats = pair_counts(torch.from_numpy(ids), l).numpy() / (len(ids) * patches * (patches - 1))
    return pairs


def pair_counts(ids: Tensor, l: int, into: Tensor | None = None) -> Tensor:
    """Σ over images of (r rᵀ − diag r), (l, l) int64, of checked ids (images, T); adds to `into` if given."""
    pairs = torch.zeros(l, l, dtype=torch.int64, device=ids.device) if into is None else into
    patches = ids.shape[1]
    few_tokens = l <= GEMM_TOKENS_PER_PATCH * patches
    for chunk in torch.split(ids, max(1, CHUNK // (l if few_tokens else patches**2))):
        if few_tokens:
            histogram = torch.zeros(len(chunk), l, dtype=torch.float64, device=ids.device)
            histogram.scatter_add_(1, chunk, torch.ones_like(chunk, dtype=torch.float64))
            pairs += (histogram.T @ histogram).to(torch.int64)  # whole numbers, exact below 2⁵³
        else:
            cells = chunk[:, :, None] * l + chunk[:, None, :]  # (images, T, T)
            count_into(pairs, cells)
    pairs.diagonal().sub_(torch.bincount(ids.flatten(), minlength=l))
    return pairs


def pair_counts_between(first: Tensor, second: Tensor, into: Tensor) -> None:
    """Add to `into` (l, l) the pairs of a token of one view and another of the other, both ways, not of one place.

    first, second: checked ids (images, T) of two views of the same images, place by place.
    """
    l, patches = len(into), first.shape[1]
    apart = ~torch.eye(patches, dtype=torch.bool, device=first.device)
    size = max(1, CHUNK // max(1, patches**2))
    for one, other in zip(torch.split(first, size), torch.split(second, size), strict=True):
        count_into(into, (one[:, :, None] * l + other[:, None, :])[:, apart])  # of (images, T, T)
        count_into(into, (other[:, :, None] * l + one[:, None, :])[:, apart])


def count_into(table: Tensor, cells: Tensor) -> None:
    """Add 1 to the entry of a contiguous table at every flat index in `cells`; repeated indices add up."""
    flat = cells.flatten()
    table.view(-1).index_add_(0, flat, torch.ones_like(flat, dtype=table.dtype))


def cooccurrence_sum_sq(Q: Input) -> float:
    """Σλ² = Σ_{S,S'} Q(S,S')²/(p_S p_S') with p the row sums; tokens never used are left out.

    Q: (l, l) symmetric, at any scale. No eigenvalue is computed.

    >>> cooccurrence_sum_sq([[0.5, 0.0], [0.0, 0.5]])
    2.0
    """
    table = to_array(Q, "the co-occurrence table")
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise DataError(f"the co-occurrence table must be square, not of shape {table.shape}")
    table = as_counts(table, "the co-occurrence table", 2)
    mass = table.sum(axis=1)
    if not np.allclose(mass, table.sum(axis=0), rtol=1e-9, atol=1e-12 * mass.sum()):
        raise DataError("the co-occurrence table must be symmetric")
    inverse = np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)
    blocks = (slice(start, start + ROW_BLOCK) for start in range(0, len(table), ROW_BLOCK))
    return float(sum(inverse[rows] @ (table[rows] ** 2 @ inverse) for rows in blocks))


def sum_sq_half(tokens: Input, l: int, halves: Input | None = None) -> float:
    """Σλ² of real tokens, corrected for the number of images: 2·full − mean of two halves.

    tokens: (images, T) ids in 0..l-1, at least two images in an order that has nothing to do with their
    content. halves: (images,) of 0 and 1; by default the first ⌊images/2⌋ images against the rest. The
    plug-in value is too large by O(l²/images), and twice as much so on half of them.

    >>> sum_sq_half([[0, 0, 0], [1, 1, 1]], 2)
    3.0
    """
    ids = as_tokens(tokens, l)
    if halves is None:
        second = np.arange(len(ids)) >= len(ids) // 2
    else:
        second = to_array(halves, "halves").astype(bool)
        if second.shape != (len(ids),):
            raise DataError(f"halves must have one entry an image, not shape {second.shape}")
    if second.all() or not second.any():
        raise DataError("both halves need at least one image")
    pairs = [pair_counts(torch.from_numpy(ids[half]), l) for half in (~second, second)]
    return half_corrected(*pairs)[0]


def half_corrected(first: Tensor, second: Tensor) -> tuple[float, float]:
    """(corrected, plug-in) Σλ² from the (l, l) pair counts of two halves of the images."""
    plug_in = cooccurrence_sum_sq(first + second)
    halves = (cooccurrence_sum_sq(first) + cooccurrence_sum_sq(second)) / 2
    return 2 * plug_in - halves, plug_in
