"""Which tokenizer wins at which ratio r = c2/c1, and Theorem 1 of the paper (section 2.2) corrected.

The theorem's setting: no weight of the mask graph joins two classes. The labels then have α = 0 and Σλ² = c, the
number of classes. They are optimal among class-pure tokenizers for every ratio; among all tokenizers only from a
critical ratio r* on, and (c−1)/(1−Σπ²) ≤ r* ≤ max_{k≠k'}(1/π_k + 1/π_k') (docs/theory.md#theorem-1-corrected).
"""

from __future__ import annotations

import math

import numpy as np

from clustermim.count_tables import Floats, Input, to_array
from clustermim.errors import DataError
from clustermim.theory.inputs import SUM_TOLERANCE

TIE = 1e-10  # two bounds closer than this are equal


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


def necessary_ratio(pi: Input) -> float:
    """(c−1)/(1−Σπ²): below it a single token beats the labels in every graph. pi: (c,) class shares, sum 1.

    >>> necessary_ratio([0.5, 0.5])
    2.0
    """
    shares = _shares(pi)
    return (len(shares) - 1) / float(1 - shares @ shares) if len(shares) > 1 else 0.0


def sufficient_ratio(pi: Input) -> float:
    """max_{k≠k'}(1/π_k + 1/π_k'): from it on the labels are optimal in every graph. pi: (c,) class shares, sum 1.

    >>> sufficient_ratio([0.5, 0.5])
    4.0
    """
    shares = _shares(pi)
    return float(np.sum(1 / shares[:2])) if len(shares) > 1 else 0.0


def _shares(pi: Input) -> Floats:
    """Class shares, (c,), smallest first, all positive and summing to one."""
    shares = to_array(pi, "the class prior").astype(np.float64)
    if shares.ndim != 1 or shares.size == 0 or not (shares > 0).all():
        raise DataError(f"the class prior must be a list of positive shares, not {shares.tolist()}")
    if abs(shares.sum() - 1) > SUM_TOLERANCE:
        raise DataError(f"the class prior sums to {shares.sum():.6g}, not to 1: probabilities are not rescaled here")
    return np.sort(shares)
