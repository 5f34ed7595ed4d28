"""The toy model's closed forms, and all that only the audit asks of it: weights, spectrum, α by convention.

With t = m/n, θ = 1 − st/2 and γ = θ (identity), θ² (class-wise) or 0 (cross-class): Σλ² = 1 + (s−1)θ²γ².
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from clustermim.count_tables import Floats, Input
from clustermim.errors import ConfigError
from clustermim.theory.toy import as_incidence, check_toy, class_gram, token_counts, toy_alpha

Convention = Literal["excl", "disjoint", "soft", "latent"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
Kind = Literal["identity", "mae", "pattern", "class", "cross", "single"]
MAX_POINTS = 5_000  # weights of more points than this would not fit in 200 MB
Number = TypeVar("Number", Fraction, float)


def toy_joint(Z: Input) -> Floats:
    """M = ZZᵀ/(sn²), (N, N): |classes(x1) ∩ classes(x2)|/(sn²), hence 0 for points without a common class."""
    table = as_incidence(Z)
    if len(table) > MAX_POINTS:
        raise ConfigError(f"the weights of {len(table)} points are too many to write out: at most {MAX_POINTS}")
    s, n = table.shape[1], int(table[:, 0].sum())
    return np.asarray((table @ table.T) / (s * n**2))


def toy_weights(Z: Input, tok: Input) -> Floats:
    """Edge weight between exclusive points of classes k and k', (s, s): A = G_kk'/(sn²), intra on the diagonal."""
    counts = token_counts(Z, tok)
    s, n = counts.shape[1], int(counts[:, 0].sum())
    return np.asarray(class_gram(counts) / (s * n**2))


def toy_spectrum(Z: Input, tok: Input) -> Floats:
    """The s eigenvalues of Q·G, largest first, Q being G of the identity: all that can be non-zero in Ā's."""
    scale, vectors = np.linalg.eigh(class_gram(as_incidence(Z)))
    root = vectors * np.sqrt(np.clip(scale, 0, None))  # Q = root·rootᵀ; Q may be singular
    values = np.linalg.eigvalsh(root.T @ class_gram(token_counts(Z, tok)) @ root)
    return np.clip(values[::-1], 0, None)


def convention_alpha(Z: Input, tok: Input, convention: Convention = "latent") -> float:
    """α under one of four meanings of "the label of a shared point" (docs/theory.md#the-label-of-a-shared-point).

    excl: only two exclusive points can disagree (the paper's formula). disjoint: points without a common class
    disagree. soft: labels drawn independently from each point's classes. latent: the class each image came from.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    table = as_incidence(Z)
    G = class_gram(token_counts(table, tok))
    s, n = table.shape[1], int(table[:, 0].sum())
    if convention == "latent":
        return toy_alpha(Z, tok)
    patterns, sizes = np.unique(table, axis=0, return_counts=True)
    degree, common = patterns.sum(axis=1), patterns @ patterns.T
    if convention == "excl":
        disagree = (common == 0) & (np.maximum.outer(degree, degree) == 1)
    elif convention == "disjoint":
        disagree = common == 0
    else:
        disagree = 1 - common / np.outer(degree, degree)
    weights = patterns @ G @ patterns.T / (s * n**2)  # A between two points of these patterns
    return float(sizes @ (weights * disagree) @ sizes)


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
        alpha_excl=slope * kappa(t, s, "excl") * (1 - gamma),
        alpha_disjoint=slope * kappa(t, s, "disjoint") * (1 - gamma),
        alpha_soft=slope * (1 - theta**2 * gamma),  # a constant part more than κ(1 − γ)
        alpha_latent=slope * (1 - gamma),
    )


def kappa(t: Any, s: int, convention: Convention) -> Any:
    """κ: how steeply α falls with γ, in units of (s−1)/s, for a number or polynomial t."""
    e = 1 - (s - 1) * t
    if convention == "excl":
        return e**2
    if convention == "disjoint":
        return e**2 + 2 * (s - 2) * e * t + (s - 2) * (s - 3) * t**2
    return (1 - s * t / 2) ** 2 if convention == "soft" else 1 + 0 * t
