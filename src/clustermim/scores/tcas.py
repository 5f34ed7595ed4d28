"""Token-class alignment similarity (the paper's section 3.1): how well tokens and classes coincide.

Lower is better, although the name says similarity: 0 means that every used token is a class of its own. The
paper's words and formula allow several readings (docs/theory.md#tcas). The default is plain frequencies, C_ii as
defined, unused tokens dropped.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from clustermim.count_tables import Floats, Input, as_counts, as_table, gram_sum_sq
from clustermim.errors import ConfigError

Norm = Literal["plain", "softmax"]
Diag = Literal["C", "norm"]
Empty = Literal["drop", "zero", "uniform"]


@dataclass(frozen=True)
class TCASVariant:
    """One way to read the formula of the paper (docs/theory.md#tcas).

    Args:
        norm: class shares f of a token as they are, or softmax(f / tau) as the paper's text says.
        diag: the diagonal term is 1 − C_ii as the paper defines it (C), or 1 − ‖R̄(i)‖ as its equation prints (norm).
        tau: temperature of the softmax.
        empty: a token that never occurs is left out (drop), has an all-zero row (zero) or an even one (uniform).
    """

    norm: Norm = "plain"
    diag: Diag = "C"
    tau: float = 1.0
    empty: Empty = "drop"

    def __post_init__(self) -> None:
        for name, allowed in (("norm", Norm), ("diag", Diag), ("empty", Empty)):
            if (value := getattr(self, name)) not in get_args(allowed):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(allowed))}, not {value!r}")
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ConfigError(f"tau must be a positive number, not {self.tau}")

    def __str__(self) -> str:
        tau = f", tau={self.tau:g}" if self.norm == "softmax" else ""
        return f"{self.norm}, diag={self.diag}{tau}, empty={self.empty}"


# What the paper can have meant: "softmax" in its text or plain shares, C_ii as defined or the norm that is printed.
VARIANTS = {
    "plain_C": TCASVariant(),
    "plain_norm": TCASVariant(diag="norm"),
    "softmax_C": TCASVariant("softmax"),
    "softmax_norm": TCASVariant("softmax", "norm"),
}


def tcas(R: Input, norm: Norm = "plain", diag: Diag = "C", tau: float = 1.0, empty: Empty = "drop") -> float:
    """TCAS of a tokens × classes count table.

    R: (l1, l2) counts. With the rows of R̄ the profiles of the tokens and C = R̄ R̄ᵀ,

        TCAS = 1/l1 Σ_i (1 − C_ii)² + 1/l1² Σ_{i≠i'} C_ii'²

    (the paper's section 3.1). The second sum is ‖R̄ᵀR̄‖_F² − Σ C_ii², so that a codebook of thousands of tokens costs
    O(l1·l2·min(l1, l2)) and no more memory than the table. See `TCASVariant` for the options. Softmax at temperature 1
    or above warns: its values can hardly differ from one tokenizer to another.

    >>> tcas([[5, 0, 0], [0, 7, 0], [0, 0, 2]])
    0.0
    >>> tcas([[4, 0, 0], [4, 0, 0], [4, 0, 0], [4, 0, 0]])
    0.75
    """
    table = as_table(R)
    variant = TCASVariant(norm, diag, tau, empty)
    warn_if_flat(variant, int(np.count_nonzero(table.sum(axis=1))), table.shape[1])
    return tcas_of(table, variant)


def tcas_of(table: Floats, variant: TCASVariant) -> float:
    """TCAS of a checked (l1, l2) float64 table with a positive total, without checks or warnings."""
    profiles = token_profiles(table, variant)
    l1 = len(profiles)
    purity = np.einsum("ij,ij->i", profiles, profiles)  # C_ii, (l1,)
    inner = purity if variant.diag == "C" else np.sqrt(purity)
    # Rounding may leave the difference of two equal sums a hair below 0.
    off_diagonal = max(gram_sum_sq(profiles) - float(purity @ purity), 0.0)
    return float(np.mean((1 - inner) ** 2)) + off_diagonal / l1**2


def token_profiles(table: Floats, variant: TCASVariant) -> Floats:
    """R̄: one row of class shares for each token that the variant keeps."""
    rows = table.sum(axis=1)
    seen = rows > 0
    shares: Floats = table[seen] / rows[seen, None]
    if variant.norm == "softmax":
        shares = np.exp((shares - shares.max(axis=1, keepdims=True)) / variant.tau)
        shares /= shares.sum(axis=1, keepdims=True)
    if variant.empty == "drop" or seen.all():
        return shares
    profiles = np.full(table.shape, 0.0 if variant.empty == "zero" else 1 / table.shape[1])
    profiles[seen] = shares
    return profiles


def warn_if_flat(variant: TCASVariant, l1: int, l2: int) -> None:
    """Say how little softmax can move when its temperature is that of the paper's text."""
    if variant.norm == "softmax" and variant.tau >= 1:
        low, high = tcas_range(l1, l2, variant.norm, variant.diag, variant.tau)
        warnings.warn(
            f"softmax at temperature {variant.tau:g} can only move between {low:.6f} and {high:.6f} here "
            f"({l1} used tokens, {l2} classes); norm='plain' uses the whole scale",
            stacklevel=3,
        )


def tcas_range(l1: int, l2: int, norm: Norm = "plain", diag: Diag = "C", tau: float = 1.0) -> tuple[float, float]:
    """The interval a variant of TCAS can move in, over all tables of l1 used tokens and l2 classes.

    A profile's smallest entry m is 0 (plain) or 1/(e^(1/τ) + l2 − 1) (softmax), so its Σ p² lies between 1/l2 and the
    value b of a pure token, and two profiles have ⟨p, p'⟩ ≥ 2m − l2·m². Hence, with square roots of q and b in the
    first terms for diag="norm",

        high = max over q in {1/l2, b} of (1 − q)² + (1 − 1/l1)·q², reached by l1 equal profiles
        low  = (1 − b)² + (1 − 1/l1)·(2m − l2·m²)², reached by distinct pure tokens when l1 ≤ l2

    For more tokens than classes `low` is a lower bound, sharpened to δ/(1 + δ), δ = 1/l2 − 1/l1, for plain with C_ii.

    >>> low, high = tcas_range(50, 100, "softmax")
    >>> round(low, 5), round(high, 5)
    (0.97964, 0.9802)
    """
    if l1 < 1 or l2 < 1:
        raise ConfigError(f"a range needs at least one token and one class, not {l1} and {l2}")
    variant = TCASVariant(norm, diag, tau)
    weight = math.exp(-1 / tau) if variant.norm == "softmax" else 0.0  # of a class absent from a pure token
    least = weight / (1 + (l2 - 1) * weight)
    most = 1 - (l2 - 1) * least
    pure = most**2 + (l2 - 1) * least**2

    def equal_profiles(purity: float, off_diagonal: float) -> float:
        inner = purity if variant.diag == "C" else math.sqrt(purity)
        return (1 - inner) ** 2 + (1 - 1 / l1) * off_diagonal**2

    low = equal_profiles(pure, 2 * least - l2 * least**2)
    if l1 > l2 and variant.norm == "plain" and variant.diag == "C":
        gap = 1 / l2 - 1 / l1
        low = gap / (1 + gap)
    return low, max(equal_profiles(1 / l2, 1 / l2), equal_profiles(pure, pure))


def tcas_chance(prior: Input, l1: int) -> float:
    """TCAS of l1 used tokens that know nothing of the classes: (1 − Σπ²)² + (1 − 1/l1)(Σπ²)².

    prior: (l2,) class shares or counts. Plain frequencies.

    >>> round(tcas_chance([0.1] * 10, 50), 6)
    0.8198
    """
    if l1 < 1:
        raise ConfigError(f"chance needs at least one used token, not {l1}")
    weights = as_counts(prior, "the class prior", 1)
    purity = float(np.sum((weights / weights.sum()) ** 2))
    return (1 - purity) ** 2 + (1 - 1 / l1) * purity**2


def tcas_capacity(usage: Input, prior_max: float) -> float:
    """The least TCAS that this usage of the codebook allows: mean_i (1 − min(1, π_max / w_i))².

    usage: (l,) token shares or counts; tokens never used do not count. A token used by a share w_i of all
    patches cannot be pure when no class is that large. Plain frequencies.

    >>> round(tcas_capacity([1] * 10, 0.01), 6)
    0.81
    """
    if not 0 < prior_max <= 1:
        raise ConfigError(f"the share of the largest class must lie in (0, 1], not {prior_max}")
    weights = as_counts(usage, "the token usage", 1)
    weights = weights[weights > 0] / weights.sum()
    return float(np.mean((1 - np.minimum(1, prior_max / weights)) ** 2))


def tcas_adjusted(score: float, null: float) -> float:
    """1 − score/null: 0 is no class information, 1 is perfect.

    null: mean TCAS of the same tokens under permuted image labels.

    >>> tcas_adjusted(0.2, 0.8)
    0.75
    """
    if not (math.isfinite(null) and null > 0):
        raise ConfigError(f"the null must be a positive number, not {null}")
    return 1 - score / null
