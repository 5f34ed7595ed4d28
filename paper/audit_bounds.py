"""Audit, second part: bounds of the two-class model (appendix B) and everything about s classes (appendix C)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from paper import printed
from paper.brute import M, N, bound, bound_series, edge_weights, series_of, tokens
from paper.closed import Kind
from paper.verdicts import AuditRow, Check, Claim, judge

MANY = ((2, 10, 2), (3, 10, 2), (4, 12, 2))  # (s, n, m) on which appendix C is evaluated
ORDER = ((2, 24, 2), (3, 24, 2), (4, 24, 2))  # (s, n, m) with a small overlap, t = 1/12


def rows() -> list[AuditRow]:
    """Rows 9 to 11 and 17 to 22 of the errata."""
    return [
        mae_polynomial(), class_polynomial(), cross_polynomial(), many_class_intra(), many_class_inter(),
        many_cross(), many_slopes(), many_cross_bound(), constant(),
    ]  # fmt: skip


def _series_checks(kind: Kind, formula: Callable[[Fraction], Fraction], terms: int) -> list[Check]:
    """Coefficients up to t^(terms−1), the printed ones from the formula itself."""
    own, exact = series_of(formula), bound_series(2, kind, printed.c3(2))
    return [Check(f"coefficient of t^{i}", _term(own, i), _term(exact, i)) for i in range(terms)]


def _term(series: tuple[Fraction, ...], i: int) -> Fraction:
    return series[i] if i < len(series) else Fraction(0)


def _value_check(kind: Kind, formula: Callable[[Fraction], Fraction]) -> Check:
    return Check(f"n={N}, m={M}: bound", formula(Fraction(M, N)), bound(N, M, 2, kind, printed.c3(2)))


def mae_polynomial() -> AuditRow:
    """Row 9."""
    checks = [_value_check("identity", printed.bound_mae), *_series_checks("identity", printed.bound_mae, 5)]
    why = "The missing factor 2 of Σλ² takes t(1−t) away."
    exact = "2 − 11t/4 + 7t²/2 − 11t³/4 + t⁴"
    return judge(9, "B, MAE bound", printed.bound_mae, exact, why, checks)


def class_polynomial() -> AuditRow:
    """Row 10."""
    checks = [_value_check("class", printed.bound_class), *_series_checks("class", printed.bound_class, 7)]
    why = "It inherits both slips of Σλ², and is not what the paper's own Σλ² gives either."
    exact = "2 − 7t/2 + 35t²/4 − 15t³ + 55t⁴/4 − 6t⁵ + t⁶"
    return judge(10, "B, class bound", printed.bound_class, exact, why, checks)


def cross_polynomial() -> AuditRow:
    """Row 11. Only the printed terms are compared: the rest is O(t³)."""
    why = "The constant term alone needs c3 = 5 instead of 5/2, and the t² term also loses the t² of Σλ²."
    checks = _series_checks("cross", printed.bound_cross, 3)
    return judge(11, "B, cross bound", printed.bound_cross, "9/4 − 5t/2 + 5t²/4", why, checks)


def _weights(s: int, n: int, m: int, kind: Kind) -> tuple[Fraction, Fraction]:
    return edge_weights(n, m, s, tokens(n, m, s, kind))


def many_class_intra() -> AuditRow:
    """Row 17."""
    checks = [
        Check(f"s={s}, n={n}, m={m}: intra, class", printed.many_class_intra(n, m, s), _weights(s, n, m, "class")[0])
        for s, n, m in MANY
    ]
    why = "Half the exact weight; at s = 2 it contradicts the paper's own two-class formula."
    exact = "[(n−(s−1)m/2)²+(s−1)(m/2)²]/(sn⁴)"
    return judge(17, "C, class intra", printed.many_class_intra, exact, why, checks)


def many_class_inter() -> AuditRow:
    """Row 18."""
    checks = [
        Check(f"s={s}, n={n}, m={m}: inter, class", printed.many_class_inter(n, m, s), _weights(s, n, m, "class")[1])
        for s, n, m in MANY
    ]
    stated = all(printed.many_class_inter(n, m, s) < printed.many_mae_inter(n, m, s) for s, n, m in MANY)
    holds = all(_weights(s, n, m, "class")[1] < _weights(s, n, m, "identity")[1] for s, n, m in MANY)
    claim = Claim("class-wise tokens lower inter-class weights below MAE's, for any s", stated, holds)
    why = "A factor 2 and the points shared with third classes, (s−2)m²/4, are missing; the exact weight exceeds MAE's."
    return judge(18, "C, class inter", printed.many_class_inter, "m(n−sm/4)/(sn⁴)", why, checks, claim=claim)


def many_cross() -> AuditRow:
    """Row 19."""
    checks = [
        Check(f"s={s}, n={n}, m={m}: {name}, cross", printed.many_cross_weight(n, s), weight)
        for s, n, m in MANY
        for name, weight in zip(("intra", "inter"), _weights(s, n, m, "cross"), strict=True)
    ]
    why = "All s² pairs of classes weigh the same and add up to 1; the two agree at s = 2 only."
    return judge(19, "C, cross weights", printed.many_cross_weight, "1/(s²n²)", why, checks)


def many_slopes() -> AuditRow:
    """Row 20."""
    kinds: tuple[Kind, Kind] = ("identity", "class")
    checks = [
        Check(f"s={s}: coefficient of t, {name}", slope, bound_series(s, kind, printed.c3(s))[1])
        for s in (2, 3, 4)
        for name, kind, slope in zip(("MAE", "class"), kinds, printed.many_bound_slopes(s), strict=True)
    ]
    why = "The two-class slopes, wrong already, were multiplied by s−1; the exact ones grow like s²."
    exact = "s − (s−1)(2s−5/4)t, s − (s−1)(3s−5/2)t"
    return judge(20, "C, MAE and class bounds", printed.many_bound_slopes, exact, why, checks)


def many_cross_bound() -> AuditRow:
    """Row 21."""
    sizes = (2, 3, 4, 5)
    exact = {s: bound(4, 0, s, "cross", printed.c3(s)) for s in sizes}
    mae = {s: bound(4, 0, s, "identity", printed.c3(s)) for s in sizes}
    checks = [Check(f"s={s}, n=4, m=0: bound, cross", printed.many_bound_cross(s), exact[s]) for s in sizes]
    claim = Claim(
        "the cross-class bound is the largest, for any s",
        all(printed.many_bound_cross(s) > s for s in sizes),
        all(exact[s] > mae[s] for s in sizes),
    )
    why = (
        "The exact bound stays below 7/2 while MAE's is s: from three classes on cross-class tokens have the lower one."
    )
    return judge(
        21, "C, cross bound", printed.many_bound_cross, "1 + (5/2)(1−1/s) at t = 0", why, checks, claim=claim
    )  # fmt: skip


def constant() -> AuditRow:
    """Row 22."""
    kinds: tuple[Kind, Kind, Kind] = ("class", "identity", "cross")
    evidence = []
    for s, n, m in ORDER:
        ours, mae, cross = (bound(n, m, s, kind, printed.c3(s)) for kind in kinds)
        evidence.append(Check(f"s={s}, n={n}, m={m}: class against MAE", ours, mae))
        evidence.append(Check(f"s={s}, n={n}, m={m}: MAE against cross", mae, cross))
    evidence.sort(key=lambda check: check.printed < check.exact)  # the pairs out of order first
    holds = all(check.printed < check.exact for check in evidence)
    claim = Claim("B_class < B_MAE < B_cross for small t and any number of classes", True, holds)
    why = "For t → 0 the order holds exactly when s < c3 < 2s, which 5/2 meets for two classes only."
    return judge(22, "B and C, constant", printed.c3, "needs s < c3 < 2s", why, evidence=evidence, claim=claim)
