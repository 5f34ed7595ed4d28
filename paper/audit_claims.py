"""Audit, third part: Theorem 1, TCAS (section 3.1), the correlation (appendix E) and numbers printed twice."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

import numpy as np

from clustermim.scores import Diag, Norm
from paper import printed
from paper.correlation import TABLE, correlate
from paper.exact import exact_graph
from paper.partitions import set_partitions
from paper.readings import nearest, possible, table_range
from paper.verdicts import AuditRow, Check, Claim, judge

RATIOS = (Fraction(1), Fraction(5, 2), Fraction(4), Fraction(8))
THEOREM_CASES = ((2, 2), (3, 1), (3, 2))  # (classes, targets of each); views are independent given the class


def rows() -> list[AuditRow]:
    """Rows 23 to 28 of the errata."""
    return [theorem(), softmax(), diagonal(), codebook_size(), correlation(), printed_twice()]


def theorem() -> AuditRow:
    """Row 23."""
    evidence, holds = [], True
    for classes, size in THEOREM_CASES:
        labels = [k for k in range(classes) for _ in range(size)]
        terms = _all_terms(labels)
        own = terms[tuple(labels)]
        least = printed.theorem_ratio([Fraction(1, classes)] * classes)
        for ratio in (r for r in RATIOS if r >= least):
            best = min(spectral + ratio * error for spectral, error in terms.values())
            value = own[0] + ratio * own[1]
            evidence.append(Check(f"{classes} classes × {size}, c2/c1 = {ratio}: labels against minimum", value, best))
            holds = holds and value == best
    claim = Claim("the label function minimises the bound", True, holds)
    why = "A single token has Σλ² = 1 and wins below (c−1)/(1−Σπ²); no proof is printed."
    exact = "needs c2/c1 ≥ max(1/π_k+1/π_k')"
    return judge(23, "Theorem 1", printed.theorem_ratio, exact, why, evidence=evidence, claim=claim)


def _all_terms(labels: list[int]) -> dict[tuple[int, ...], tuple[Fraction, Fraction]]:
    """(Σλ², α) of every tokenizer when view and target are two draws from one class, exact."""
    weights = np.array([[int(a == b) for b in labels] for a in labels], dtype=object)
    graphs = {tok: exact_graph(weights, tok) for tok in set_partitions(len(labels))}
    return {tok: (graph.sum_sq(), graph.alpha(1 - weights)) for tok, graph in graphs.items()}


def softmax() -> AuditRow:
    """Row 24."""
    norm = cast(Norm, printed.tcas_norm())
    diags: dict[Diag, str] = {"C": "C_ii", "norm": "‖R̄(i)‖"}
    evidence = [
        Check(f"{text}: the nearest of the 16 values against the nearest attainable one", *nearest(norm, diag))
        for diag, text in diags.items()
    ]
    holds = any(possible(norm, diag) == len(TABLE) for diag in diags)
    claim = Claim("the 16 values of the table are scores of this formula", True, holds)
    why = "Softmax of shares over 100 classes is nearly even, so that the score can move by less than 0.003."
    ranges = {text: table_range(norm, diag) for diag, text in diags.items()}
    exact = "attainable: " + ", ".join(f"[{low:.4f}, {high:.4f}] with {text}" for text, (low, high) in ranges.items())
    return judge(24, "3.1, softmax", printed.tcas_norm, exact, why, evidence=evidence, claim=claim)


def diagonal() -> AuditRow:
    """Row 25."""
    row, norm = (Fraction(3, 7), Fraction(4, 7)), Fraction(5, 7)  # a profile whose length is rational
    exact = (1 - sum(share * share for share in row)) ** 2
    checks = [Check("profile (3/7, 4/7): diagonal term", printed.diagonal_term(norm), exact)]
    why = "A diagonal entry of R̄R̄ᵀ is the squared length of a row, so the two printed expressions are two metrics."
    return judge(25, "3.1, TCAS equation", printed.diagonal_term, "C_ii = ‖R̄(i)‖₂²", why, checks)


def codebook_size() -> AuditRow:
    """Row 26."""
    tables = {
        "10 pure tokens": [[Fraction(i == j) for j in range(10)] for i in range(10)],
        "2 tokens that know nothing of 10 classes": [[Fraction(1, 10)] * 10] * 2,
    }
    evidence = [
        Check(f"{name}, before and after splitting each in two", _score(table), _score([*table, *table]))
        for name, table in tables.items()
    ]
    holds = all(check.agrees for check in evidence)
    unique = (1 - Fraction(1)) ** 2  # a token seen once has one class: C_ii = 1
    evidence.append(
        Check("diagonal part, no information, 10 classes: one patch a token, many", unique, Fraction(81, 100))
    )
    claim = Claim("the score does not depend on the size of the codebook", True, holds)
    why = (
        "Splitting tokens changes the score, and rare tokens look pure: the larger the codebook, the rarer its tokens."
    )
    return judge(
        26, "3.1, λ1 and λ2", printed.tcas_weights, "depends on l1", why, evidence=evidence, claim=claim
    )  # fmt: skip


def _score(profiles: list[list[Fraction]]) -> Fraction:
    """TCAS of rows of frequencies with the printed weights, by its definition."""
    inner = [[sum((a * b for a, b in zip(u, v, strict=True)), Fraction(0)) for v in profiles] for u in profiles]
    size = len(profiles)
    diagonal = sum(((1 - inner[i][i]) ** 2 for i in range(size)), Fraction(0))
    others = sum((inner[i][j] ** 2 for i in range(size) for j in range(size) if i != j), Fraction(0))
    first, second = printed.tcas_weights(size)
    return first * diagonal + second * others


def correlation() -> AuditRow:
    """Row 27. Compared at the two decimals that are printed."""
    whole = correlate("all 16 rows", "linear probe", [row.tcas for row in TABLE], [row.probe for row in TABLE])
    checks = [Check("16 rows: r to two decimals", printed.correlation(), round(whole.pearson, 2))]
    evidence = [Check("16 rows: the same against R²", printed.correlation(), round(whole.r_squared, 2))]
    why = "0.85 is R²; r is negative, strong between families of tokenizers and not within them."
    return judge(27, "E", printed.correlation, "r = −0.92, R² = 0.85", why, checks, evidence=evidence)


def printed_twice() -> AuditRow:
    """Row 28. Neither value can be recomputed; what is checked is that the two agree."""
    pairs = printed.printed_twice()
    checks = [Check(what, first, second, "elsewhere") for what, (first, second) in pairs.items()]
    probes = [value for what, both in pairs.items() if "linear probe" in what for value in both]
    best = max(row.probe for row in TABLE if row.method == "DINO")
    used = [Check("best linear probe of table 1's ViT-S, whichever value is taken", best, max(probes))]
    why = (
        "The best of table 1 stands with either value, but one epoch of k-means (53.5) beats MaskFeat only against "
        "53.1, not against 57.1; VQGAN with K=16384 is in the short table only."
    )
    return judge(
        28, "tables", printed.printed_twice, "one of each two differing values is a misprint", why, checks, used
    )
