"""Closed forms of the toy model, exact (docs/theory.md#the-toy-model), and where the paper's order holds.

With t = m/n, θ = 1 − st/2 and γ = θ (identity), θ² (class-wise), 0 (cross-class): Σλ² = 1 + (s−1)θ²γ², and every
convention for α is affine in γ. The order class < identity < cross of the paper's bounds therefore holds in an
explicit interval of r = c2/c1 for every t.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.polynomial import Polynomial

from clustermim.errors import ConfigError
from clustermim.theory.toy import Convention, check_convention, check_toy

Kind = Literal["identity", "mae", "pattern", "class", "cross", "single"]
Number = TypeVar("Number", Fraction, float)


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
    t, slope = Fraction(m, n), Fraction(s - 1, s)
    theta = 1 - s * t / 2
    gammas = {"class": theta**2} | dict.fromkeys(("cross", "single"), Fraction(0))
    gammas |= dict.fromkeys(("identity", "mae", "pattern"), theta)
    if kind not in gammas:
        raise ConfigError(f"there is no closed form for {kind!r}: identity, pattern, class, cross or single")
    gamma = gammas[kind]
    return ToyClosed(
        gamma=gamma,
        theta=theta,
        sum_sq=1 + (s - 1) * theta**2 * gamma**2,
        intra=(1 + (s - 1) * gamma) / (s * n) ** 2,
        inter=(1 - gamma) / (s * n) ** 2,
        alpha_excl=slope * _kappa(t, s, "excl") * (1 - gamma),
        alpha_disjoint=slope * _kappa(t, s, "disjoint") * (1 - gamma),
        alpha_soft=slope * (1 - theta**2 * gamma),  # a constant part more than κ(1 − γ)
        alpha_latent=slope * (1 - gamma),
    )


def _kappa(t: Any, s: int, convention: Convention) -> Any:
    """κ: how steeply α falls with γ, in units of (s−1)/s, for a number or polynomial t."""
    e = 1 - (s - 1) * t
    if convention == "excl":
        return e**2
    if convention == "disjoint":
        return e**2 + 2 * (s - 2) * e * t + (s - 2) * (s - 3) * t**2
    return (1 - s * t / 2) ** 2 if convention == "soft" else 1 + 0 * t


def order_window(t: float, s: int = 2, convention: Convention = "latent") -> tuple[float, float]:
    """The ratios r between which the bounds order as class < identity < cross, for one overlap 0 < t ≤ 1/(s−1).

    identity < cross ⇔ rκ/s > θ³ and class < identity ⇔ rκ/s < θ³(1+θ). Both ends are infinite where κ = 0.
    """
    if s < 2 or not 0 < t * (s - 1) <= 1:
        raise ConfigError(f"the overlap of {s} classes must lie in (0, {1 / max(s - 1, 1):g}], not {t}")
    check_convention(convention)
    exact = Fraction(t)
    theta, kappa = float(1 - s * exact / 2), float(_kappa(exact, s, convention))
    if kappa <= 0:
        return math.inf, math.inf
    return s * theta**3 / kappa, s * theta**3 * (1 + theta) / kappa


def order_overlaps(ratio: float, s: int = 2, convention: Convention = "latent") -> list[tuple[float, float]]:
    """The open intervals of t in which the paper's full order holds at one ratio."""
    check_convention(convention)
    t = Polynomial([0.0, 1.0])
    theta, scaled = 1 - s * t / 2, _kappa(t, s, convention) * (ratio / s)
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
