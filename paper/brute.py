"""The toy model's numbers that the audit compares with: by brute force, and remembered, for it asks often."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from clustermim.theory.toy import tok_class, tok_cross, tok_identity, toy_incidence
from paper.closed import Kind
from paper.exact import ExactGraph, exact_toy, interpolate
from paper.printed import Counts

Tokens = tuple[int, ...]

N, M = 10, 2  # the two-class example of most rows: t = 1/5
# Eighteen points in three tokens that follow no symmetry, to catch formulas that hold only for special tokenizers.
UNEVEN: Tokens = (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 2)
CROSS_TOKENS = 2


@lru_cache
def tokens(n: int, m: int, s: int, kind: Kind) -> Tokens:
    """A tokenizer of the toy model by its name."""
    Z = toy_incidence(n, m, s)
    if kind == "identity":
        return tuple(tok_identity(Z).tolist())
    return tuple((tok_class(Z) if kind == "class" else tok_cross(Z, CROSS_TOKENS)).tolist())


def examples() -> dict[str, Tokens]:
    """The tokenizers of the two-class example."""
    kinds: dict[str, Kind] = {"MAE": "identity", "class": "class", "cross": "cross"}
    return {**{name: tokens(N, M, 2, kind) for name, kind in kinds.items()}, "uneven": UNEVEN}


@lru_cache
def graph(n: int, m: int, s: int, tok: Tokens) -> ExactGraph:
    """The augmentation graph, exact."""
    return exact_toy(n, m, s).graph(tok)


@lru_cache
def bound_terms(n: int, m: int, s: int, kind: Kind) -> tuple[Fraction, Fraction]:
    """(Σλ², α) with the paper's labels of shared points, `excl`."""
    tok = tokens(n, m, s, kind)
    return graph(n, m, s, tok).sum_sq(), exact_toy(n, m, s).alpha(tok, "excl")


def bound(n: int, m: int, s: int, kind: Kind, ratio: Fraction) -> Fraction:
    """Σλ² + r·α."""
    spectral, error = bound_terms(n, m, s, kind)
    return spectral + ratio * error


def edge_weights(n: int, m: int, s: int, tok: Tokens) -> tuple[Fraction, Fraction]:
    """(intra, inter): A between exclusive points of one class, and of two."""
    exclusive = n - (s - 1) * m
    edges = graph(n, m, s, tok)
    return edges.weight(0, 0), edges.weight(0, exclusive)


def normalised(tok: Tokens, x: int, other: int) -> Fraction:
    """Ā(x, x') = A/d of two points with the same degree in the two-class example."""
    edges = graph(N, M, 2, tok)
    return edges.weight(x, other) * edges.total / int(edges.degrees[x])


def counts(tok: Tokens) -> Counts:
    """(n_i1, n_i2, n_i3) of each token of the two-class example."""
    regions = [0 if classes == {0} else 1 if classes == {1} else 2 for classes in exact_toy(N, M).classes]
    table = [[0, 0, 0] for _ in set(tok)]
    for token, region in zip(tok, regions, strict=True):
        table[token][region] += 1
    return [(a, b, c) for a, b, c in table]


def bound_series(s: int, kind: Kind, ratio: Fraction) -> tuple[Fraction, ...]:
    """Coefficients in t of Σλ² + r·α, from brute force at more overlaps than a polynomial of degree 6 needs."""
    sizes = range(2 * (s - 1), 2 * (s - 1) + 7)
    if kind == "cross":  # both tokens need the same share of the exclusive points
        sizes = range(2 * (s - 1), 2 * (s - 1) + 14, 2)
    values = {Fraction(2, n): bound(n, 2, s, kind, ratio) for n in sizes}
    return interpolate({Fraction(0): bound(2, 0, s, kind, ratio), **values})


def series_of(function: Callable[[Fraction], Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of a printed polynomial in t of degree up to 8."""
    return interpolate({Fraction(i, 9): function(Fraction(i, 9)) for i in range(9)})
