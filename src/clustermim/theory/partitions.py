"""Tokenizers as partitions: enumeration, the two terms of the bound for all of them at once, who wins where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from clustermim.count_tables import Floats, Input, Ints
from clustermim.errors import ConfigError
from clustermim.theory.graphs import class_mass, inverse, token_joint, token_matrix
from clustermim.theory.inputs import Weights, as_weights

MAX_POINTS = 10  # 115,975 partitions; 11 points have 678,570
BATCH = 4_096  # partitions evaluated at a time
TIE = 1e-10  # two bounds closer than this are equal


def set_partitions(n: int) -> Iterator[tuple[int, ...]]:
    """Every partition of n points once, as a restricted-growth string, in lexicographic order.

    >>> list(set_partitions(3))
    [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2)]
    """
    if not 1 <= n <= MAX_POINTS:
        raise ConfigError(f"partitions can be enumerated for 1 to {MAX_POINTS} points, not {n}")

    def growing(start: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(start) == n:
            yield start
        else:
            for block in range(max(start) + 2):
                yield from growing((*start, block))

    return growing((0,))


def restricted_growth(tok: Sequence[int] | Ints) -> tuple[int, ...]:
    """A partition in the form in which equal partitions are equal: blocks numbered as they appear.

    >>> restricted_growth([2, 0, 2, 1])
    (0, 1, 0, 2)
    """
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(block), len(names)) for block in tok)


def partition_terms(M: Weights, y1: Input, partitions: Input) -> tuple[Floats, Floats]:
    """(Σλ², α) of many tokenizers of one small graph, each (B,).

    M: (N1, N2) weights. y1: (N1,) classes of the views. partitions: (B, N2) token ids below N2. Tokens of a coarser
    partition are sums of rows and columns of the identity's Q = P^{1/2} K P^{1/2}.
    """
    weights, total = as_weights(M)
    M, identity = weights / total, np.arange(weights.shape[1])
    root = np.sqrt(token_joint(M, identity).sum(axis=0))
    Q = root[:, None] * token_matrix(M, identity) * root
    mass = class_mass(M, identity, y1)
    rows = np.asarray(partitions, dtype=np.int64)
    terms = [_batch_terms(Q, mass, rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
    return np.concatenate([spectral for spectral, _ in terms]), np.concatenate([error for _, error in terms])


def _batch_terms(Q: Floats, mass: Floats, partitions: Ints) -> tuple[Floats, Floats]:
    member = (partitions[:, :, None] == np.arange(len(Q))).astype(np.float64)  # (B, N2, tokens)
    pairs = np.swapaxes(member, 1, 2) @ Q @ member  # (B, tokens, tokens)
    shares = mass @ member  # (B, classes, tokens)
    over_p = inverse(shares.sum(axis=1))
    error = 1 - np.einsum("bks,bks,bs->b", shares, shares, over_p)
    return np.einsum("bst,bst,bs,bt->b", pairs, pairs, over_p, over_p), np.clip(error, 0, None)


def winning_interval(sum_sq: Input, alpha: Input, which: int) -> tuple[float, float] | None:
    """The ratios r = c2/c1 ≥ 0 at which tokenizer `which` has the lowest Σλ² + r·α, or None if there are none.

    sum_sq, alpha: (B,) terms of the tokenizers. X beats Y where r is on the right side of
    (Σλ²_X − Σλ²_Y)/(α_Y − α_X). The upper end may be infinite.

    >>> winning_interval([1.0, 1.5, 2.0], [0.5, 0.2, 0.0], 1)
    (1.6666666666666667, 2.5)
    """
    spectral, error = np.asarray(sum_sq, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
    excess, gain = spectral[which] - spectral, error - error[which]
    if (excess[np.abs(gain) <= TIE] > TIE).any():
        return None
    more, less = gain > TIE, gain < -TIE
    low = max(float(np.max(excess[more] / gain[more], initial=0.0)), 0.0)
    high = float(np.min(excess[less] / gain[less], initial=math.inf))
    return (low, high) if low <= high + TIE else None


def interval_text(interval: tuple[float, float] | None) -> str:
    """Ratios as people read them: `1.2 … 3.4`, `from 3 on`, `nowhere`."""
    if interval is None:
        return "nowhere"
    low, high = interval
    return f"from {low:.4g} on" if high == math.inf else f"{low:.4g} … {high:.4g}"
