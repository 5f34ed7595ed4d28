"""Brute force in exact rationals, straight from the definitions: what closed forms and printed formulas must meet.

Weights are whole numbers, so every quantity is a fraction. Sums run over Python integers with one common
denominator, which is as exact as adding fractions and far faster. For small graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.closed import Convention

Integers = NDArray[Any]  # object array of Python integers: they never overflow


@dataclass(frozen=True)
class ExactGraph:
    """The augmentation graph of whole-number weights under a tokenizer: A(x, x') = edges[x, x'] · unit."""

    edges: Integers  # (N1, N1)
    unit: Fraction
    degrees: Integers  # (N1,), d(x) · total
    total: int

    def weight(self, x: int, other: int) -> Fraction:
        """A(x, x'): probability of this ordered pair of views."""
        return int(self.edges[x, other]) * self.unit

    def normalised_sq(self, x: int, other: int) -> Fraction:
        """Ā(x, x')² = A²/(d d'); Ā itself need not be rational."""
        return self.weight(x, other) ** 2 * self.total**2 / (int(self.degrees[x]) * int(self.degrees[other]))

    def sum_sq(self) -> Fraction:
        """Σλ² = ‖Ā‖_F², entry by entry."""
        common = math.lcm(*self.degrees)
        inverse = common // self.degrees
        squares = int(inverse @ (self.edges**2) @ inverse)
        return squares * (self.unit * self.total / common) ** 2

    def alpha(self, disagree: Integers) -> Fraction:
        """α = Σ A(x, x')·disagree(x, x') over all ordered pairs; disagree: (N1, N1) integers or fractions."""
        return Fraction((self.edges * disagree).sum()) * self.unit


def exact_graph(weights: Sequence[Sequence[int]] | Integers, tok: Sequence[int]) -> ExactGraph:
    """A = J diag(1/p) Jᵀ of (N1, N2) whole-number weights without empty views, tok: (N2,) token ids."""
    table = np.array(weights, dtype=object)
    tokens = sorted(set(tok))
    joint = np.stack([table[:, [i for i, t in enumerate(tok) if t == token]].sum(axis=1) for token in tokens], axis=1)
    mass = joint.sum(axis=0)
    joint, mass = joint[:, mass > 0], mass[mass > 0]
    common = math.lcm(*mass)
    edges = (joint * (common // mass)) @ joint.T
    total = int(table.sum())
    return ExactGraph(edges, Fraction(1, common * total), table.sum(axis=1), total)


@dataclass(frozen=True)
class ExactToy:
    """The toy model as sets: members[k] are the points of class k, classes[x] the classes of a point."""

    n: int
    members: tuple[tuple[int, ...], ...]
    classes: tuple[frozenset[int], ...]

    def weights(self) -> Integers:
        """How many of the s·n² equally likely data are the pair (x1, x2), counted one by one, (N, N)."""
        table = np.zeros((len(self.classes), len(self.classes)), dtype=object)
        for points in self.members:
            table[np.ix_(points, points)] += 1
        return table

    def graph(self, tok: Sequence[int]) -> ExactGraph:
        """The augmentation graph of a tokenizer."""
        return exact_graph(self.weights(), tok)

    def alpha(self, tok: Sequence[int], convention: Convention) -> Fraction:
        """α by adding up all pairs of views that disagree."""
        if convention == "latent":
            return self._alpha_latent(tok)
        disagree = [[_disagree(a, b, convention) for b in self.classes] for a in self.classes]
        return self.graph(tok).alpha(np.array(disagree, dtype=object))

    def _alpha_latent(self, tok: Sequence[int]) -> Fraction:
        """A view is a point together with the class that its image came from."""
        points = len(self.classes)
        rows, labels = [], []
        for k, members in enumerate(self.members):
            row = [int(x in members) for x in range(points)]
            rows += [row] * len(members)
            labels += [k] * len(members)
        disagree = np.array([[int(a != b) for b in labels] for a in labels], dtype=object)
        return exact_graph(rows, tok).alpha(disagree)


def exact_toy(n: int, m: int, s: int = 2) -> ExactToy:
    """s classes of n points, m shared by every two, in the order of `toy_incidence`."""
    sets = [frozenset({k}) for k in range(s) for _ in range(n - (s - 1) * m)]
    sets += [frozenset(pair) for pair in combinations(range(s), 2) for _ in range(m)]
    members = tuple(tuple(x for x, classes in enumerate(sets) if k in classes) for k in range(s))
    return ExactToy(n, members, tuple(sets))


def _disagree(a: frozenset[int], b: frozenset[int], convention: str) -> Fraction:
    if convention == "excl":
        return Fraction(len(a) == len(b) == 1 and a != b)
    if convention == "disjoint":
        return Fraction(not a & b)
    return 1 - Fraction(len(a & b), len(a) * len(b))


def interpolate(values: dict[Fraction, Fraction]) -> tuple[Fraction, ...]:
    """Coefficients, lowest first, of the polynomial of least degree through exact points t → value.

    >>> [str(c) for c in interpolate({Fraction(0): Fraction(1), Fraction(1): Fraction(3), Fraction(2): Fraction(9)})]
    ['1', '0', '2']
    """
    coefficients = [Fraction(0)] * len(values)
    basis = [Fraction(1)]  # Π (t − t_i) over the points done so far
    for point, value in values.items():
        step = (value - evaluate(coefficients, point)) / evaluate(basis, point)
        coefficients = [c + step * b for c, b in zip_longest(coefficients, basis, fillvalue=Fraction(0))]
        basis = [a - point * b for a, b in zip([Fraction(0), *basis], [*basis, Fraction(0)], strict=True)]
    while len(coefficients) > 1 and coefficients[-1] == 0:
        coefficients.pop()
    return tuple(coefficients)


def evaluate(coefficients: Sequence[Fraction], t: Fraction) -> Fraction:
    """The polynomial with these coefficients, lowest first, at t."""
    value = Fraction(0)
    for coefficient in reversed(coefficients):
        value = value * t + coefficient
    return value
