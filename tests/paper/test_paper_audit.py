"""The audit: its verdicts are those of the errata, and they follow from the printed formulas."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from paper import printed
from paper.audit import audit
from paper.brute import N, counts, examples, series_of
from paper.correlation import leave_one_out, table_correlations
from paper.partitions import restricted_growth
from paper.printed import p12_line1
from paper.readings import capacity_conflicts, reading_ranges
from paper.verdicts import AuditRow, Check, Claim, judge, show

# What each row is: T a typo, D a wrong derivation, C a false conclusion.
KINDS = [
    "T", "ok", "ok", "T", "D", "T", "D", "ok", "D", "D", "D", "D,C", "D,C", "C",
    "T", "T", "D", "D,C", "D", "D", "D,C", "C", "C", "C", "D", "C", "D", "T",
]  # fmt: skip
VERDICTS = {"T": "typo", "ok": "right", "D": "wrong", "C": "conclusion affected", "D,C": "conclusion affected"}


def row(number: int) -> AuditRow:
    return audit()[number - 1]


def test_verdicts_of_the_errata() -> None:
    rows = audit()
    assert [row.number for row in rows] == list(range(1, 29))
    assert [row.kind for row in rows] == KINDS
    assert [row.verdict for row in rows] == [VERDICTS[kind] for kind in KINDS]
    for row in rows:
        assert row.why.endswith(".")
        assert "\n" not in row.why
        assert row.checks or row.evidence
        assert row.printed not in ("", "(changed)")
        assert row.example


def p13(counts: Any, n: int) -> Fraction:
    terms = (Fraction((a + c) * (a + b + 2 * c), 2 * n**2 * (a + b + 2 * c)) for a, b, c in counts)
    return sum(terms, Fraction(0))


def spectral(counts: Any, n: int, m: int) -> Fraction:
    h, t = p12_line1(counts, n) * n, Fraction(m, n)
    return 1 + (1 - t) ** 2 * (1 - 2 * h) ** 2


def half(value: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: value(*args) / 2


# Row, name in `printed`, another formula, and the verdict it must lead to.
CHANGES: list[tuple[int, str, Callable[..., Any], str]] = [
    (1, "joint", lambda a, b, n: Fraction(len(a & b), 2 * n**2), "right"),
    (1, "p11", half(printed.p11), "wrong"),  # were p11 wrong too, row 1 would be no mere typo
    (2, "marginal", lambda shared, n: Fraction(1, n), "wrong"),
    (3, "p11", half(printed.p11), "wrong"),
    (4, "p12", printed.p12_line1, "right"),
    (4, "p12_line1", printed.p12, "wrong"),
    (5, "p13_over_root2", p13, "right"),
    (6, "p33", lambda counts, n: Fraction(1, n), "right"),
    (7, "sum_sq", spectral, "right"),
    (8, "alpha", half(printed.alpha), "wrong"),
    (9, "bound_mae", lambda t: 1 + (1 - t) ** 4 + Fraction(5, 4) * t * (1 - t) ** 2, "right"),
    (10, "bound_class", lambda t: 1 + (1 - t) ** 6 + Fraction(5, 2) * (1 - t) ** 2 * (t - t**2 / 2), "right"),
    (11, "bound_cross", lambda t: 1 + Fraction(5, 4) * (1 - t) ** 2, "right"),
    (12, "inter_from_p12", lambda p, n: p / (2 * n), "right"),
    (13, "class_inter", lambda n, m: m * (n - Fraction(m, 2)) / (2 * n**4), "right"),
    (14, "class_raises_intra", lambda ours, mae: ours < mae, "right"),
    (15, "class_counts", printed.class_counts_appendix, "right"),
    (16, "last_token", printed.last_token_later, "right"),
    (17, "many_class_intra", lambda n, m, s: 2 * original_intra(n, m, s), "right"),
    (18, "many_class_inter", lambda n, m, s: m * (n - Fraction(s * m, 4)) / (s * n**4), "right"),
    (19, "many_cross_weight", lambda n, s: Fraction(1, s**2 * n**2), "right"),
    (20, "many_bound_slopes", lambda s: tuple((1 - s) * (k * s - Fraction(5 * (k - 1), 4)) for k in (2, 3)), "right"),
    (21, "many_bound_cross", lambda s: Fraction(7, 2) - Fraction(5, 2 * s), "right"),
    (22, "c3", lambda s: Fraction(5 * s, 4), "right"),
    (23, "theorem_ratio", lambda prior: 2 / min(prior), "right"),
    (24, "tcas_norm", lambda: "plain", "right"),
    (25, "diagonal_term", lambda norm: (1 - norm**2) ** 2, "right"),
    (26, "tcas_weights", lambda size: (Fraction(1, size), Fraction(0)), "right"),
    (27, "correlation", lambda: -0.92, "right"),
    (28, "printed_twice", lambda: {"a, linear probe": (59.7, 59.7)}, "right"),
    (28, "printed_twice", lambda: {"a, linear probe": (59.7, 60.0)}, "wrong"),
]  # fmt: skip
original_intra = printed.many_class_intra


@pytest.mark.parametrize(("number", "name", "formula", "verdict"), CHANGES)
def test_another_formula_gives_another_verdict(
    number: int, name: str, formula: Callable[..., Any], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed, name, formula)
    assert row(number).verdict == verdict != VERDICTS[KINDS[number - 1]]


def test_every_row_is_changed_by_a_formula() -> None:
    assert {number for number, *_ in CHANGES} == set(range(1, 29))


def test_a_wrong_formula_beside_a_false_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "class_intra", lambda n, m: Fraction(1))
    assert row(14).kind == "D,C"


def test_numbers_of_the_errata() -> None:
    by_case = {check.case: check for check in row(7).checks}
    assert float(by_case["n=10, m=2: Σλ², cross"].printed) == 0.7376
    own = series_of(lambda t: _own_class_sum_sq(t))
    assert own == tuple(map(Fraction, ("2", "-7", "15", "-71/4", "53/4", "-21/4", "3/4")))  # not what row 10 prints
    assert examples()["uneven"] == restricted_growth(examples()["uneven"])
    assert sum(a + b + 2 * c for a, b, c in counts(examples()["uneven"])) == 2 * N


def _own_class_sum_sq(t: Fraction) -> Fraction:
    """The paper's Σλ² with class-wise counts, at n = 18·k so that all counts are whole."""
    n = 2 * t.denominator
    m = int(t * n)
    return printed.sum_sq([(n - m, 0, m // 2), (0, n - m, m // 2)], n, m)


def test_judging() -> None:
    same, other = Check("", 1.0, 1.0), Check("", 1.0, 2.0)
    false, unsaid = Claim("", True, False), Claim("", False, False)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"checks": [same]}, "right", "ok"),
        ({"checks": [same, other]}, "wrong", "D"),
        ({"checks": [other], "used": [same]}, "typo", "T"),
        ({"checks": [other], "used": [other]}, "wrong", "D"),
        ({"checks": [other], "claim": false}, "conclusion affected", "D,C"),
        ({"checks": [same], "claim": false}, "conclusion affected", "C"),
        ({"checks": [same], "claim": unsaid}, "right", "ok"),
        ({"evidence": [other], "claim": false}, "conclusion affected", "C"),
    ]
    for parts, verdict, kind in cases:
        judged = judge(1, "", printed.joint, "", "", **parts)
        assert (judged.verdict, judged.kind) == (verdict, kind)
    assert show(Fraction(1, 3)) == "1/3"
    assert show(Fraction(1, 3000)) == "0.00033333"


def test_correlations() -> None:
    """The correlations of the paper's table of 16 tokenizers."""
    found = {(c.rows, c.accuracy): c for c in table_correlations()}
    whole = found["all 16 rows", "linear probe"]
    assert round(whole.pearson, 4) == -0.9195
    assert round(whole.r_squared, 4) == 0.8456
    assert (round(whole.low or 0, 2), round(whole.high or 0, 2)) == (-0.97, -0.78)
    assert (round(whole.spearman, 3), round(whole.kendall, 3)) == (-0.884, -0.740)
    assert tuple(round(end, 3) for end in leave_one_out()) == (-0.935, -0.902)
    expected = {
        ("all 16 rows", "fine-tuning"): (-0.509, -0.520),
        ("without DINO and DeiT", "linear probe"): (-0.797, -0.744),
        ("pixel rows", "linear probe"): (-0.668, -0.611),
        ("pixel rows, 100 k-means epochs", "linear probe"): (-0.714, -0.600),
        ("pixel rows, 100 epochs, K ≥ 50", "linear probe"): (0.532, 0.400),
        ("DINO rows", "linear probe"): (0.288, 0.500),
        ("all, Perceptual as in table 1", "linear probe"): (-0.892, -0.794),
    }
    for key, values in expected.items():
        assert (round(found[key].pearson, 3), round(found[key].spearman, 3)) == values
    assert round(found["pixel rows", "linear probe"].p or 0, 2) == 0.07
    assert found["DINO rows", "linear probe"].low is None


def test_readings() -> None:
    """The softmax readings reach none of the 16 values, the others each of them."""
    ranges = {(r.variant[0], r.classes): r for r in reading_ranges()}
    assert [ranges[letter, 100].possible for letter in "abcd"] == [0, 0, 16, 16]
    outer = {
        ("a", 10): (0.7755, 0.8243), ("a", 100): (0.97954, 0.98021), ("a", 1000): (0.997995, 0.998003),
        ("b", 10): (0.4284, 0.4818), ("b", 100): (0.80747, 0.81011), ("b", 1000): (0.937665, 0.937756),
    }  # fmt: skip
    for key, (low, high) in outer.items():
        assert low <= ranges[key].low < ranges[key].high <= high
    conflicts = [(c.k, c.method, round(c.least, 4)) for c in capacity_conflicts()]
    assert conflicts == [(10, "Pixel", 0.81), (50, "DINO", 0.25)]
