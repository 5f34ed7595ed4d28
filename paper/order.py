"""Where the paper's order of the bounds, class < identity < cross, holds (docs/theory.md#when-the-order-holds)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.polynomial import Polynomial

from clustermim.errors import ConfigError
from paper.closed import CONVENTIONS, Convention, kappa


def order_window(t: float, s: int = 2, convention: Convention = "latent") -> tuple[float, float]:
    """The ratios r between which the bounds order as class < identity < cross, for one overlap 0 < t ≤ 1/(s−1).

    identity < cross ⇔ rκ/s > θ³ and class < identity ⇔ rκ/s < θ³(1+θ). Both ends are infinite where κ = 0.
    """
    if s < 2 or not 0 < t * (s - 1) <= 1:
        raise ConfigError(f"the overlap of {s} classes must lie in (0, {1 / max(s - 1, 1):g}], not {t}")
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    exact = Fraction(t)
    theta, steepness = float(1 - s * exact / 2), float(kappa(exact, s, convention))
    if steepness <= 0:
        return math.inf, math.inf
    return s * theta**3 / steepness, s * theta**3 * (1 + theta) / steepness


def order_overlaps(ratio: float, s: int = 2, convention: Convention = "latent") -> list[tuple[float, float]]:
    """The open intervals of t in which the paper's full order holds at one ratio."""
    t = Polynomial([0.0, 1.0])
    theta, scaled = 1 - s * t / 2, kappa(t, s, convention) * (ratio / s)
    roots = np.concatenate([(scaled - theta**3).roots(), (scaled - theta**3 * (1 + theta)).roots()])
    last = 1 / (s - 1)
    inside = {float(root.real) for root in roots if abs(root.imag) < 1e-9 and 0 < root.real < last}
    intervals: list[tuple[float, float]] = []
    for left, right in pairwise([0.0, *sorted(inside), last]):
        low, high = order_window((left + right) / 2, s, convention)
        if low < ratio < high:
            if intervals and intervals[-1][1] == left:  # the order does not change at this root
                left = intervals.pop()[0]
            intervals.append((left, right))
    return intervals
