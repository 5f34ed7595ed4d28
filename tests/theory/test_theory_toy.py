"""The toy model: closed forms against brute force in exact rationals, the order of the bounds, bad sizes."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustermim import theory
from clustermim.errors import ConfigError, DataError
from clustermim.theory.toy import class_gram, token_counts
from paper.brute import bound_series
from paper.closed import CONVENTIONS, Kind, convention_alpha, toy_closed, toy_closed_exact, toy_joint, toy_spectrum
from paper.exact import evaluate, exact_toy, interpolate
from paper.order import order_overlaps, order_window
from paper.partitions import restricted_growth

KINDS: tuple[Kind, ...] = ("identity", "pattern", "class", "cross", "single")


def random_sizes(rng: random.Random) -> tuple[int, int, int]:
    """(n, m, s) with even regions, so that class-wise and cross-class tokens are as the closed forms want them."""
    s, m = rng.choice([2, 2, 3, 4]), rng.choice([0, 2, 4])
    exclusive = 2 * rng.randint(0 if m else 1, 3)
    return exclusive + (s - 1) * m, m, s


def named_tokens(Z: np.ndarray, kind: Kind) -> list[int]:
    makers = {
        "identity": theory.tok_identity, "pattern": theory.tok_pattern, "class": theory.tok_class,
        "cross": lambda Z: theory.tok_cross(Z, 2), "single": lambda Z: theory.tok_cross(Z, 1),
    }  # fmt: skip
    return makers[kind](Z).tolist()


@pytest.mark.parametrize("seed", range(30))
def test_closed_forms_are_exact(seed: int) -> None:
    n, m, s = random_sizes(random.Random(seed))
    toy, Z = exact_toy(n, m, s), theory.toy_incidence(n, m, s)
    for kind in KINDS:
        tok = named_tokens(Z, kind)
        closed, graph = toy_closed_exact(n, m, s, kind), toy.graph(tok)
        assert closed.sum_sq == graph.sum_sq()
        for convention in CONVENTIONS:
            assert getattr(closed, f"alpha_{convention}") == toy.alpha(tok, convention), (kind, convention)
        if n > (s - 1) * m:
            assert closed.intra == graph.weight(0, 0)
            assert closed.inter == graph.weight(0, n - (s - 1) * m)


def exact_gram(toy: object, tok: list[int], s: int, n: int) -> list[list[Fraction]]:
    """G in fractions, from its definition."""
    counts = [[0] * s for _ in range(max(tok) + 1)]
    for x, classes in enumerate(toy.classes):
        for k in classes:
            counts[tok[x]][k] += 1
    return [[sum(Fraction(a[k] * a[j], n * sum(a)) for a in counts) for j in range(s)] for k in range(s)]


@pytest.mark.parametrize("seed", range(60))
def test_any_partition_is_exact(seed: int) -> None:
    """Σλ² = tr((QG)²), A = Σ G/(sn²), α of all conventions, for random (n, m, s, partition)."""
    rng = random.Random(1000 + seed)
    s, m = rng.choice([2, 3, 4]), rng.randint(0, 2)
    n = (s - 1) * m + rng.randint(1, 4)
    toy, Z = exact_toy(n, m, s), theory.toy_incidence(n, m, s)
    tok = list(restricted_growth([rng.randrange(rng.randint(1, 6)) for _ in range(len(Z))]))
    Q, G = exact_gram(toy, list(range(len(Z))), s, n), exact_gram(toy, tok, s, n)
    product = [[sum(Q[i][k] * G[k][j] for k in range(s)) for j in range(s)] for i in range(s)]
    graph = toy.graph(tok)
    assert graph.sum_sq() == sum(product[i][j] * product[j][i] for i in range(s) for j in range(s))
    x, other = rng.randrange(len(Z)), rng.randrange(len(Z))
    expected = sum(G[k][j] for k in toy.classes[x] for j in toy.classes[other]) / (s * n**2)
    assert graph.weight(x, other) == expected
    assert toy.alpha(tok, "latent") == 1 - sum(G[k][k] for k in range(s)) / s
    assert theory.toy_sum_sq(Z, tok) == pytest.approx(float(graph.sum_sq()), abs=1e-12)
    assert theory.sum_sq(toy_joint(Z), tok) == pytest.approx(float(graph.sum_sq()), abs=1e-12)
    for convention in CONVENTIONS:
        exact = float(toy.alpha(tok, convention))
        assert convention_alpha(Z, tok, convention) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_two_classes_one_number(seed: int) -> None:
    """h = (1/n) Σ a_i b_i/(a_i+b_i) decides everything when there are two classes."""
    rng = random.Random(2000 + seed)
    n, m = rng.randint(3, 7), rng.randint(1, 2)
    toy, Z = exact_toy(n, m), theory.toy_incidence(n, m)
    tok = list(restricted_growth([rng.randrange(4) for _ in range(len(Z))]))
    counts = token_counts(Z, tok).tolist()
    h = sum(Fraction(a * b, a + b) for a, b in counts) / n
    t, graph = Fraction(m, n), toy.graph(tok)
    first, second, shared = 0, n - m, 2 * (n - m)
    assert t / 2 <= h <= Fraction(1, 2)
    assert graph.normalised_sq(first, first) == graph.normalised_sq(second, second) == ((1 - h) / n) ** 2
    assert graph.normalised_sq(first, second) == (h / n) ** 2
    assert graph.normalised_sq(first, shared) == Fraction(1, 2 * n**2)
    assert graph.normalised_sq(shared, shared) == Fraction(1, n**2)
    assert graph.sum_sq() == 1 + (1 - t) ** 2 * (1 - 2 * h) ** 2
    np.testing.assert_allclose(toy_spectrum(Z, tok), [1, float((1 - t) * (1 - 2 * h))], atol=1e-12)


@settings(max_examples=200)
@given(st.integers(2, 5), st.integers(0, 4), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_two_ways_to_the_spectrum(s: int, m: int, exclusive: int, seed: int) -> None:
    n = exclusive + (s - 1) * m or 1
    Z = theory.toy_incidence(n, m, s)
    tok = list(restricted_growth(np.random.default_rng(seed).integers(6, size=len(Z))))
    small, large = toy_spectrum(Z, tok), theory.spectrum(toy_joint(Z), tok)
    size = min(len(small), len(large))
    np.testing.assert_allclose(small[:size], large[:size], atol=1e-10)
    np.testing.assert_allclose(class_gram(token_counts(Z, tok)).sum(axis=1), 1, atol=1e-12)


def test_polynomials() -> None:
    """The polynomials of docs/theory.md#when-the-order-holds, from brute force."""
    ratio = Fraction(5, 2)
    texts = {"identity": "2 -11/4 7/2 -11/4 1", "class": "2 -7/2 35/4 -15 55/4 -6 1", "cross": "9/4 -5/2 5/4"}
    for kind, text in texts.items():
        assert bound_series(2, kind, ratio) == tuple(map(Fraction, text.split()))
    for s in (3, 4):
        assert bound_series(s, "identity", ratio)[1] == -(s - 1) * (2 * s - ratio / 2)
        assert bound_series(s, "class", ratio)[1] == -(s - 1) * (3 * s - ratio)
        assert bound_series(s, "cross", ratio)[:2] == (1 + ratio * (s - 1) / s, -2 * ratio * (s - 1) ** 2 / s)


def test_interpolation() -> None:
    coefficients = (Fraction(1, 3), Fraction(0), Fraction(-2))
    points = [Fraction(i, 7) for i in range(5)]
    assert interpolate({t: evaluate(coefficients, t) for t in points}) == coefficients


# (s, r): overlaps of the order under excl, latent and soft: docs/theory.md#when-the-order-holds
ORDER = {
    (2, 2.5): ([(0, 0.2753)], [(0, 0.1262)], [(0, 0.2753)]),
    (3, 2.5): ([], [(0.0393, 0.1487)], [(0.1111, 0.3061)]),
    (4, 2.5): ([], [(0.0725, 0.1428)], [(0.1875, 0.2823)]),
    (5, 2.5): ([], [(0.0825, 0.1324)], [(0.2, 0.25)]),
    (10, 2.5): ([], [(0.0740, 0.0910)], []),
    (100, 2.5): ([], [], []),
    (3, 3.75): ([(0, 0.3615)], [(0, 0.0842)], [(0, 0.1835)]),
    (5, 6.25): ([(0, 0.1168)], [(0, 0.0505)], [(0, 0.1101)]),
    (10, 12.5): ([(0, 0.0400)], [(0, 0.0252)], [(0, 0.0551)]),
}


@pytest.mark.parametrize(("s", "ratio"), ORDER)
def test_where_the_order_holds(s: int, ratio: float) -> None:
    for convention, expected in zip(("excl", "latent", "soft"), ORDER[s, ratio], strict=True):
        found = order_overlaps(ratio, s, convention)
        assert [tuple(round(end, 4) for end in interval) for interval in found] == expected


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("n", "m", "s"), [(20, 2, 2), (12, 2, 3), (30, 4, 4)])
def test_window_is_that_of_the_bounds(n: int, m: int, s: int, convention: str) -> None:
    low, high = order_window(m / n, s, convention)

    def ordered(ratio: float) -> bool:
        kinds: tuple[Kind, Kind, Kind] = ("class", "identity", "cross")
        closed = [toy_closed(n, m, s, kind) for kind in kinds]
        values = [value.sum_sq + ratio * getattr(value, f"alpha_{convention}") for value in closed]
        return values[0] < values[1] < values[2]

    assert ordered(low * 1.001)
    assert ordered(high * 0.999)
    assert not ordered(low * 0.999)
    assert not ordered(high * 1.001)


def test_class_wise_is_between() -> None:
    """Identity has the largest intra and the smallest inter weight, cross-class the worst of both."""
    for n, m, s in [(10, 2, 2), (12, 2, 3), (14, 4, 4)]:
        ours, mae, cross = (toy_closed_exact(n, m, s, kind) for kind in ("class", "identity", "cross"))
        assert mae.intra > ours.intra > cross.intra
        assert mae.inter < ours.inter < cross.inter


def test_labels_are_not_the_minimum() -> None:
    """Two classes of five without overlap, r = 5/2: swapping one point of each class beats the labels' bound of 2."""
    Z = theory.toy_incidence(5, 0)
    swapped = [1, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    bound = theory.toy_sum_sq(Z, swapped) + 2.5 * convention_alpha(Z, swapped, "excl")
    assert bound == pytest.approx(1.9296, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.toy_incidence(5, 3, 3), "5 points a class are too few"),
        (lambda: toy_closed(5, 3, 3), "too few"),
        (lambda: theory.toy_incidence(5, 1, 1), "at least 2 classes"),
        (lambda: theory.toy_incidence(0, 0), "1 point of each"),
        (lambda: theory.toy_incidence(5, -1), "0 shared ones"),
        (lambda: toy_closed(5, 1, 2, "class"), "1 is odd"),
        (lambda: toy_closed(5, 1, 2, "labels"), "no closed form"),
        (lambda: theory.tok_cross(theory.toy_incidence(4, 0), 5), "between 1 and 4"),
        (lambda: convention_alpha(theory.toy_incidence(2, 0), [0, 0, 1, 1], "hard"), "convention"),
        (lambda: order_window(0.0), "overlap"),
        (lambda: order_window(0.1, 2, "hard"), "convention"),
        (lambda: toy_joint(theory.toy_incidence(3000, 0)), "too many"),
    ],
)
def test_bad_sizes(call: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convention_alpha(theory.toy_incidence(2, 0), [0, 0, 2, 2]), "gap"),
        (lambda: theory.toy_sum_sq(theory.toy_incidence(2, 0), [0, 0, 1]), "4 targets"),
        (lambda: toy_joint([[1, 2]]), "0 and 1"),
        (lambda: toy_joint([[1, 0], [1, 1]]), "same number"),
    ],
)
def test_bad_tables(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()
