"""Audit, first part: probabilities and edge weights of the two-class model (section 2.2, appendix B)."""

from __future__ import annotations

from fractions import Fraction

from paper import printed
from paper.brute import M, N, counts, edge_weights, examples, graph, normalised, tokens
from paper.exact import exact_toy
from paper.verdicts import AuditRow, Check, Claim, judge

FIRST, SECOND, SHARED = 0, N - M, 2 * (N - M)  # a point of class 1 only, of class 2 only, of both
SIZES = f"n={N}, m={M}"


def rows() -> list[AuditRow]:
    """Rows 1 to 8 and 12 to 16 of the errata."""
    return [
        joint(), marginals(), p11(), p12(), p13(), p33(), spectral(), error(),
        conversion(), class_inter(), class_intra(), class_counts(), last_token(),
    ]  # fmt: skip


def joint() -> AuditRow:
    """Row 1."""
    toy = exact_toy(N, M)
    weights, total = toy.weights(), 2 * N**2
    points = {"class 1 only": FIRST, "class 2 only": SECOND, "shared": SHARED}
    pairs = [("class 1 only", "class 1 only"), ("class 1 only", "class 2 only"), ("class 1 only", "shared")]
    pairs.append(("shared", "shared"))
    checks = [
        Check(
            f"{SIZES}: {a} × {b}",
            printed.joint(toy.classes[points[a]], toy.classes[points[b]], N),
            Fraction(int(weights[points[a], points[b]]), total),
        )
        for a, b in pairs
    ]
    why = "Two points without a common class are never drawn together; p11 and p12 are computed as if that were said."
    return judge(1, "B, joint", printed.joint, "0 for class 1 only × class 2 only", why, checks, used=_p11_checks())


def marginals() -> AuditRow:
    """Row 2."""
    edges = graph(N, M, 2, examples()["MAE"])
    checks = [
        Check(f"{SIZES}: {name}", printed.marginal(name == "shared", N), Fraction(int(edges.degrees[x]), edges.total))
        for name, x in (("exclusive", FIRST), ("shared", SHARED))
    ]
    return judge(
        2, "B, marginals", printed.marginal, "the same", "A shared point has two classes to come from.", checks
    )


def _p11_checks() -> list[Check]:
    checks = []
    for name, tok in examples().items():
        checks.append(Check(f"{SIZES}: p11, {name}", printed.p11(counts(tok), N), normalised(tok, FIRST, FIRST)))
        checks.append(Check(f"{SIZES}: p22, {name}", printed.p22(counts(tok), N), normalised(tok, SECOND, SECOND)))
    return checks


def p11() -> AuditRow:
    """Row 3."""
    why = "Both are (1−h)/n with h = (1/n) Σ a_i b_i/(a_i+b_i), a_i and b_i a token's points in the two classes."
    return judge(3, "B, p11, p22", printed.p11, "the same; both equal (1−h)/n", why, _p11_checks())


def p12() -> AuditRow:
    """Row 4."""
    exact = {name: normalised(tok, FIRST, SECOND) for name, tok in examples().items()}
    checks, used = (
        [Check(f"{SIZES}: {label}, {name}", formula(counts(tok), N), exact[name]) for name, tok in examples().items()]
        for label, formula in (("p12", printed.p12), ("p12 line 1", printed.p12_line1))
    )
    why = "The second line drops the exclusive points; its first line, and everything after it, has them."
    return judge(4, "B, p12", printed.p12, "Σ (n_i1+n_i3)(n_i2+n_i3)/(N_i n²) = h/n", why, checks, used)


def p13() -> AuditRow:
    """Row 5. Compared as p13², because p13 is a multiple of √2."""
    edges = {name: graph(N, M, 2, tok) for name, tok in examples().items()}
    checks = [
        Check(
            f"{SIZES}: p13², {name}",
            2 * printed.p13_over_root2(counts(tok), N) ** 2,
            edges[name].normalised_sq(FIRST, SHARED),
        )
        for name, tok in examples().items()
    ]
    why = "The token's points of the other class are forgotten, so the value is right for MAE only and is used in Σλ²."
    exact = "Σ (n_i1+n_i3)(n_i1+n_i2+2n_i3)√2/(2n² N_i) = 1/(√2 n) for every tokenizer"
    return judge(5, "B, p13, p23", printed.p13_over_root2, exact, why, checks)


def p33() -> AuditRow:
    """Row 6."""
    exact = {name: normalised(tok, SHARED, SHARED) for name, tok in examples().items()}
    checks = [
        Check(f"{SIZES}: p33, {name}", printed.p33(counts(tok), N), exact[name]) for name, tok in examples().items()
    ]
    used = [Check(f"{SIZES}: last line, {name}", printed.p33_value(N), value) for name, value in exact.items()]
    return judge(6, "B, p33", printed.p33, "n_{i,2}; value 1/n", "An index: n_{1,2} stands for n_{i,2}.", checks, used)


def spectral() -> AuditRow:
    """Row 7."""
    checks = [
        Check(f"{SIZES}: Σλ², {name}", printed.sum_sq(counts(tok), N, M), graph(N, M, 2, tok).sum_sq())
        for name, tok in examples().items()
    ]
    why = "Exclusive × shared pairs occur twice in a symmetric matrix; printed values can fall below λ1² = 1."
    return judge(7, "B, Σλ²", printed.sum_sq, "2(n−m)m(p13²+p23²) in the middle, with the right p13", why, checks)


def error() -> AuditRow:
    """Row 8."""
    toy = exact_toy(N, M)
    checks = [
        Check(f"{SIZES}: α, {name}", printed.alpha(counts(tok), N, M), toy.alpha(tok, "excl"))
        for name, tok in examples().items()
    ]
    soft, latent = (toy.alpha(examples()["class"], name) for name in ("soft", "latent"))
    why = (
        f"Right if a shared point is never wrong; class-wise α is {soft} with drawn labels, {latent} with the images'."
    )
    return judge(8, "B, α", printed.alpha, "the same, under one convention for shared points", why, checks)


def _lowers_inter(stated: bool, n: int, m: int, s: int) -> Claim:
    class_wise, mae = (edge_weights(n, m, s, tokens(n, m, s, kind))[1] for kind in ("class", "identity"))
    return Claim("class-wise tokens lower inter-class weights below MAE's", stated, class_wise < mae)


def conversion() -> AuditRow:
    """Row 12."""
    checks = [
        Check(
            f"{SIZES}: inter, {name}",
            printed.inter_from_p12(normalised(tok, FIRST, SECOND), N),
            edge_weights(N, M, 2, tok)[1],
        )
        for name, tok in examples().items()
    ]
    stated = printed.inter_from_p12(normalised(examples()["class"], FIRST, SECOND), N) < printed.mae_inter(N, M)
    why = "An exclusive point has degree 1/(2n), so A = p12/(2n); MAE and cross are converted so, class-wise is not."
    return judge(
        12, "B, text", printed.inter_from_p12, "p12/(2n)", why, checks, claim=_lowers_inter(stated, N, M, 2)
    )  # fmt: skip


def class_inter() -> AuditRow:
    """Row 13."""
    exact = edge_weights(N, M, 2, examples()["class"])[1]
    checks = [Check(f"{SIZES}: inter, class", printed.class_inter(N, M), exact)]
    claim = _lowers_inter(printed.class_inter(N, M) < printed.mae_inter(N, M), N, M, 2)
    why = "Printed is half the exact weight, and the exact one exceeds MAE's m/(4n³) whenever 0 < t < 1."
    return judge(13, "2.2 and B, class inter", printed.class_inter, "m(n−m/2)/(2n⁴)", why, checks, claim=claim)


def class_intra() -> AuditRow:
    """Row 14."""
    exact, mae = (edge_weights(N, M, 2, examples()[name])[0] for name in ("class", "MAE"))
    checks = [Check(f"{SIZES}: intra, class", printed.class_intra(N, M), exact)]
    evidence = [Check(f"{SIZES}: intra, class against MAE", exact, mae)]
    claim = Claim(
        "class-wise tokens raise intra-class weights above MAE's", True, printed.class_raises_intra(exact, mae)
    )
    why = "The formula is right, but its value is smaller than MAE's for 0 < t < 1: merging tokens can only lower 1−α."
    return judge(
        14, "2.2, class intra", printed.class_intra, "the same, and below (2n−m)/(4n³)", why, checks,
        evidence=evidence, claim=claim,
    )  # fmt: skip


def class_counts() -> AuditRow:
    """Row 15."""
    table = counts(examples()["class"])
    exact = {f"n_{i + 1}{j + 1}": Fraction(table[i][j]) for i in range(2) for j in range(3)}
    checks, used = (
        [Check(f"{SIZES}: {name}{where}", value, exact[name]) for name, value in formula(N, M).items()]
        for where, formula in (("", printed.class_counts), (" (B)", printed.class_counts_appendix))
    )
    why = "A class-wise token holds no exclusive point of the other class; appendix B counts so."
    return judge(15, "2.2, class-wise counts", printed.class_counts, "n_12 = n_21 = 0", why, checks, used)


def last_token() -> AuditRow:
    """Row 16."""
    checks, used = (
        [
            Check(
                f"{SIZES}: Σ n_i1{where}, {name}",
                Fraction(sum(row[0] for row in counts(tok)[: last(len(set(tok)), 2)])),
                Fraction(N - M),
            )
            for name, tok in examples().items()
        ]
        for where, last in (("", printed.last_token), (" (B)", printed.last_token_later))
    )
    why = "There are l tokens, not c; c also names the overall constant and c3, and a token's index is i, not s."
    return judge(16, "2.2 and C, counts", printed.last_token, "Σ_{i=1}^{l}; n_{i,s,b}", why, checks, used)
