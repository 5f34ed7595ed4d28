"""Closed forms of the toy model, exact (docs/theory.md#the-toy-model), and where the paper's order holds.

With t = m/n, θ = 1 − st/2 and γ = θ (identity), θ² (class-wise), 0 (cross-class): Σλ² = 1 + (s−1)θ²γ², and every
convention for α is affine in γ. The order class < identity < cross of the paper's bounds therefore holds in an
explicit interval of r = c2/c1 for every t.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from clustermim.count_tables import Floats
from clustermim.errors import ConfigError
from clustermim.theory.toy import CONVENTIONS, Convention, check_toy

Kind = Literal["identity", "mae", "pattern", "class", "cross", "single"]
Number = TypeVar("Number", Fraction, float)

ROOT_STEPS = 60  # bisections of an interval shorter than 1: down to rounding
SCAN = 4_000  # overlaps looked at before the ends of an interval are refined


class ToyClosed(NamedTuple, Generic[Number]):
    """Everything the closed forms say about one tokenizer."""

    gamma: Number
    theta: Number
    sum_sq: Number
    intra: Number  # edge weight between exclusive points of one class
    inter: Number  # … of two classes
    alpha_excl: Number
    alpha_disjoint: Number
    alpha_soft: Number
    alpha_latent: Number


def toy_closed(n: int, m: int, s: int = 2, kind: Kind = "identity") -> ToyClosed[float]:
    """The closed forms as floats. See `toy_closed_exact`.

    >>> toy_closed(10, 2, 2, "cross").alpha_excl
    0.32
    """
    return ToyClosed(*(float(value) for value in toy_closed_exact(n, m, s, kind)))


def toy_closed_exact(n: int, m: int, s: int = 2, kind: Kind = "identity") -> ToyClosed[Fraction]:
    """The closed forms in rationals (docs/theory.md#the-toy-model).

    kind: identity (also called mae, and the same graph as pattern), class (m must be even: shared points are
    halved), cross (any number of tokens that divides the regions; the same as single).
    """
    check_toy(n, m, s)
    if kind == "class" and m % 2:
        raise ConfigError(f"class-wise closed forms halve the shared points: {m} is odd")
    t = Fraction(m, n)
    theta = 1 - s * t / 2
    gamma = _gamma(theta, kind)
    slope = Fraction(s - 1, s)
    alpha = {name: slope * _kappa(t, s, name) * (1 - gamma) for name in CONVENTIONS}
    return ToyClosed(
        gamma=gamma,
        theta=theta,
        sum_sq=1 + (s - 1) * theta**2 * gamma**2,
        intra=(1 + (s - 1) * gamma) / (s * n) ** 2,
        inter=(1 - gamma) / (s * n) ** 2,
        alpha_excl=alpha["excl"],
        alpha_disjoint=alpha["disjoint"],
        alpha_soft=slope * (1 - theta**2 * gamma),  # a constant part more than κ(1 − γ)
        alpha_latent=alpha["latent"],
    )


def _gamma(theta: Fraction, kind: str) -> Fraction:
    if kind in ("identity", "mae", "pattern"):
        return theta
    if kind == "class":
        return theta**2
    if kind in ("cross", "single"):
        return Fraction(0)
    raise ConfigError(f"there is no closed form for {kind!r}: identity, pattern, class, cross or single")


def _kappa(t: Fraction, s: int, convention: Convention) -> Fraction:
    """κ: how steeply α falls with γ, in units of (s−1)/s (docs/theory.md#when-the-order-holds)."""
    e = 1 - (s - 1) * t
    if convention == "excl":
        return e**2
    if convention == "disjoint":
        return e**2 + 2 * (s - 2) * e * t + (s - 2) * (s - 3) * t**2
    if convention == "soft":
        return (1 - s * t / 2) ** 2
    return Fraction(1)


def order_window(t: float, s: int = 2, convention: Convention = "latent") -> tuple[float, float]:
    """The ratios r between which the bounds order as class < identity < cross, for one overlap 0 < t ≤ 1/(s−1).

    identity < cross ⇔ rκ/s > θ³ and class < identity ⇔ rκ/s < θ³(1+θ). Both ends are infinite where κ = 0.
    """
    if s < 2 or not 0 < t * (s - 1) <= 1:
        raise ConfigError(f"the overlap of {s} classes must lie in (0, {1 / max(s - 1, 1):g}], not {t}")
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    exact = Fraction(t)
    theta, kappa = float(1 - s * exact / 2), float(_kappa(exact, s, convention))
    if kappa <= 0:
        return float("inf"), float("inf")
    return s * theta**3 / kappa, s * theta**3 * (1 + theta) / kappa


def order_overlaps(ratio: float, s: int = 2, convention: Convention = "latent") -> list[tuple[float, float]]:
    """The open intervals of t in which the paper's full order holds at one ratio."""
    grid: Floats = np.linspace(0, 1 / (s - 1), SCAN + 1)[1:]
    holds = [_ordered(float(t), ratio, s, convention) for t in grid]
    intervals: list[tuple[float, float]] = []
    start = 0.0 if holds[0] else None
    for i in range(1, len(grid)):
        if holds[i] == holds[i - 1]:
            continue
        edge = _bisect(float(grid[i - 1]), float(grid[i]), ratio, s, convention)
        if holds[i]:
            start = edge
        elif start is not None:
            intervals.append((start, edge))
            start = None
    return [*intervals, (start, float(grid[-1]))] if start is not None else intervals


def _ordered(t: float, ratio: float, s: int, convention: Convention) -> bool:
    low, high = order_window(min(t, 1 / (s - 1)), s, convention)
    return low < ratio < high


def _bisect(left: float, right: float, ratio: float, s: int, convention: Convention) -> float:
    """Where `_ordered` changes between two overlaps at which it differs."""
    at_left = _ordered(left, ratio, s, convention)
    for _ in range(ROOT_STEPS):
        middle = (left + right) / 2
        if _ordered(middle, ratio, s, convention) == at_left:
            left = middle
        else:
            right = middle
    return (left + right) / 2
