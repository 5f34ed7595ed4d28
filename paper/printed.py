"""The paper's formulas and claims as printed, mistakes included: nothing here may be used to compute anything.

The audit evaluates them on concrete numbers beside brute force. The first line of each docstring is the printed text.
A token of the two-class model is a triple (n_i1, n_i2, n_i3): its points in class 1 only, class 2 only, both. Formulas
in t stand for t = m/n. The paper's overall constant c is left out, and its c3 is `c3`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Counts = Sequence[tuple[int, int, int]]


# Appendix B: the two-class model


def joint(classes1: frozenset[int], classes2: frozenset[int], n: int) -> Fraction:
    """1/n² when both views are in the overlap, otherwise 1/(2n²)"""
    return Fraction(1, n**2) if len(classes1) == len(classes2) == 2 else Fraction(1, 2 * n**2)


def marginal(shared: bool, n: int) -> Fraction:
    """1/(2n) outside the overlap, 1/n in it"""
    return Fraction(1, n) if shared else Fraction(1, 2 * n)


def p11(counts: Counts, n: int) -> Fraction:
    """p11 = Σ (n_i1+n_i3)²/(N_i n²), p22 likewise; N_i = n_i1+n_i2+2n_i3"""
    return sum((Fraction((a + c) ** 2, (a + b + 2 * c) * n**2) for a, b, c in counts), Fraction(0))


def p22(counts: Counts, n: int) -> Fraction:
    """p22 = Σ (n_i2+n_i3)²/(N_i n²)"""
    return sum((Fraction((b + c) ** 2, (a + b + 2 * c) * n**2) for a, b, c in counts), Fraction(0))


def p12_line1(counts: Counts, n: int) -> Fraction:
    """p12 = 2n Σ 2n/N_i · (n_i1+n_i3)(n_i2+n_i3)/(4n⁴)"""
    terms = (Fraction(2 * n * (a + c) * (b + c), (a + b + 2 * c) * 4 * n**4) for a, b, c in counts)
    return 2 * n * sum(terms, Fraction(0))


def p12(counts: Counts, n: int) -> Fraction:
    """p12 = Σ n_i3²/(N_i n²) (second line)"""
    return sum((Fraction(c**2, (a + b + 2 * c) * n**2) for a, b, c in counts), Fraction(0))


def p13_over_root2(counts: Counts, n: int) -> Fraction:
    """p13 = Σ (n_i1+n_i3)(n_i1+2n_i3)√2/(2n² N_i), p23 likewise"""
    return sum((Fraction((a + c) * (a + 2 * c), 2 * n**2 * (a + b + 2 * c)) for a, b, c in counts), Fraction(0))


def p33(counts: Counts, n: int) -> Fraction:
    """p33 = Σ (n_i1+n_{1,2}+2n_i3)²/(2n² N_i)"""
    first = counts[0][1]
    return sum((Fraction((a + first + 2 * c) ** 2, 2 * n**2 * (a + b + 2 * c)) for a, b, c in counts), Fraction(0))


def p33_value(n: int) -> Fraction:
    """p33 = 1/n (last line)"""
    return Fraction(1, n)


def sum_sq(counts: Counts, n: int, m: int) -> Fraction:
    """Σλ² = (n−m)²(p11²+p22²+2p12²) + (n−m)m(p13²+p23²) + m²p33²"""
    swapped = [(b, a, c) for a, b, c in counts]
    exclusive = p11(counts, n) ** 2 + p22(counts, n) ** 2 + 2 * p12_line1(counts, n) ** 2
    mixed = 2 * p13_over_root2(counts, n) ** 2 + 2 * p13_over_root2(swapped, n) ** 2
    return (n - m) ** 2 * exclusive + (n - m) * m * mixed + m**2 * p33_value(n) ** 2


def alpha(counts: Counts, n: int, m: int) -> Fraction:
    """α = 2(n−m)² p12/(2n)"""
    return (n - m) ** 2 * p12_line1(counts, n) / n


def c3(s: int) -> Fraction:
    """c3 = 5/2, for any number of classes"""
    return Fraction(5, 2)


def bound_mae(t: Fraction) -> Fraction:
    """B_MAE = 2 − 15t/4 + 9t²/2 − 11t³/4 + t⁴"""
    return 2 - 15 * t / 4 + 9 * t**2 / 2 - 11 * t**3 / 4 + t**4


def bound_class(t: Fraction) -> Fraction:
    """B_class = 2−7t+16t²−39t³/2+29t⁴/2−95t⁵/16+15t⁶/16 + (5/2)(1−t)²(t−t²/2) = 2 − 9t/2 + 39t²/4 + O(t³)"""
    spectral = 2 - 7 * t + 16 * t**2 - 39 * t**3 / 2 + 29 * t**4 / 2 - 95 * t**5 / 16 + 15 * t**6 / 16
    return spectral + Fraction(5, 2) * (1 - t) ** 2 * (t - t**2 / 2)


def bound_cross(t: Fraction) -> Fraction:
    """B_cross (printed "B_class") = 7/2 − 27t/4 + 15t²/4 + O(t³)"""
    return Fraction(7, 2) - 27 * t / 4 + 15 * t**2 / 4


def inter_from_p12(p: Fraction, n: int) -> Fraction:
    """inter-class weight = p12/(4n)"""
    return p / (4 * n)


# Section 2.2: edge weights and counts


def mae_inter(n: int, m: int) -> Fraction:
    """w_inter(MAE) = m/(4n³)"""
    return Fraction(m, 4 * n**3)


def class_inter(n: int, m: int) -> Fraction:
    """w_inter(class) = m(n−m/2)/(4n⁴)"""
    return m * (n - Fraction(m, 2)) / (4 * n**4)


def class_intra(n: int, m: int) -> Fraction:
    """w_intra(class) = [(n−m/2)²+(m/2)²]/(2n⁴), said to exceed MAE's (2n−m)/(4n³)"""
    half = Fraction(m, 2)
    return ((n - half) ** 2 + half**2) / (2 * n**4)


def class_raises_intra(class_weight: Fraction, mae_weight: Fraction) -> bool:
    """class-wise tokenization enhances intra-class edge weights"""
    return class_weight > mae_weight


def class_counts(n: int, m: int) -> dict[str, Fraction]:
    """n_11 = n_22 = n−m, n_12 = n_22 = n−m, n_13 = n_23 = m/2"""
    return {name: Fraction(n - m) for name in ("n_11", "n_22", "n_12")} | {
        name: Fraction(m, 2) for name in ("n_13", "n_23")
    }


def class_counts_appendix(n: int, m: int) -> dict[str, Fraction]:
    """n_11 = n_22 = n−m, n_12 = n_21 = 0, n_13 = n_23 = m/2 (appendix B)"""
    return {name: Fraction(n - m) for name in ("n_11", "n_22")} | {
        "n_12": Fraction(0), "n_21": Fraction(0), "n_13": Fraction(m, 2), "n_23": Fraction(m, 2),
    }  # fmt: skip


def last_token(tokens: int, classes: int) -> int:
    """Σ_{i=1}^{c} n_i1 = n−m: the tokens are added up to c (and class-wise counts are indexed n_{s,s,b})"""
    return classes


def last_token_later(tokens: int, classes: int) -> int:
    """Σ_{i=1}^{l} in appendix B"""
    return tokens


# Appendix C: s classes


def many_mae_inter(n: int, m: int, s: int) -> Fraction:
    """w_inter(MAE) = m/(2sn³)"""
    return Fraction(m, 2 * s * n**3)


def many_class_intra(n: int, m: int, s: int) -> Fraction:
    """w_intra(class) = [(n−(s−1)m/2)²+(s−1)(m/2)²]/(2sn⁴)"""
    half = Fraction(m, 2)
    return ((n - (s - 1) * half) ** 2 + (s - 1) * half**2) / (2 * s * n**4)


def many_class_inter(n: int, m: int, s: int) -> Fraction:
    """w_inter(class) = m(n−(s−1)m/2)/(2sn⁴)"""
    return m * (n - (s - 1) * Fraction(m, 2)) / (2 * s * n**4)


def many_cross_weight(n: int, s: int) -> Fraction:
    """w_intra(cross) = w_inter(cross) = 1/(2sn²)"""
    return Fraction(1, 2 * s * n**2)


def many_bound_slopes(s: int) -> tuple[Fraction, Fraction]:
    """B_MAE = s − 15(s−1)t/4 + O(t²), B_class = s − 9(s−1)t/2 + O(t²)"""
    return Fraction(-15 * (s - 1), 4), Fraction(-9 * (s - 1), 2)


def many_bound_cross(s: int) -> Fraction:
    """B_cross = 1/2 + 3s/2 + O(t)"""
    return Fraction(1, 2) + Fraction(3 * s, 2)


# Theorem 1, section 3.1, appendix E, tables


def theorem_ratio(prior: Sequence[Fraction]) -> Fraction:
    """the labels minimise c1Σλ² + c2α, for any constants c1, c2"""
    return Fraction(0)


def tcas_norm() -> str:
    """R̄(i,j) = softmax_j(R(i,j)/Σ_j' R(i,j'))"""
    return "softmax"


def diagonal_term(norm: Fraction) -> Fraction:
    """(1−C_ii)² = (1−‖R̄(i)‖₂)², with C = R̄R̄ᵀ"""
    return (1 - norm) ** 2


def tcas_weights(tokens: int) -> tuple[Fraction, Fraction]:
    """λ1 = 1/l1 and λ2 = 1/l1² make the metric independent of the codebook size"""
    return Fraction(1, tokens), Fraction(1, tokens**2)


def correlation() -> float:
    """the r-value of the fitting is 0.85"""
    return 0.85


def printed_twice() -> dict[str, tuple[float, float]]:
    """accuracies and scores that appear in two places of the paper, ImageNet-100 and ViT-S"""
    return {
        "Perceptual tokenizer/PeCo, linear probe (appendix E, table 1)": (50.3, 53.2),
        "Perceptual tokenizer/PeCo, fine-tuning (appendix E, table 1)": (83.1, 83.6),
        "dVAE/BEiT, linear probe (appendix E, table 1)": (41.2, 43.2),
        "dVAE/BEiT, fine-tuning (appendix E, table 1)": (80.2, 81.0),
        "MaskFeat continuous, linear probe (section 4.2, table 1)": (53.1, 57.1),
        "MaskFeat continuous, fine-tuning (section 4.2, table 1)": (84.3, 84.3),
        "ClusterMIM Pixel K=50, linear probe (appendix E, table 1)": (52.7, 52.7),
        "ClusterMIM DINO K=100, linear probe (appendix E, table 1)": (59.7, 59.7),
    }
