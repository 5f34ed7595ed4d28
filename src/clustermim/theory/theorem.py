"""Tokenizers as partitions: all of them enumerated, who wins where, and Theorem 1 of the paper (section 2.2) corrected.

The theorem's setting: M(x1|x2) > 0 only inside a class. The labels then have α = 0 and Σλ² = c, the number of classes.
They are optimal among class-pure tokenizers for every ratio; among all tokenizers only from a critical ratio r* on, and
(c−1)/(1−Σπ²) ≤ r* ≤ max_{k≠k'}(1/π_k + 1/π_k') (docs/theory.md#theorem-1-corrected).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clustermim.count_tables import Floats, Input, Ints
from clustermim.errors import ConfigError, DataError
from clustermim.results import Result, Table
from clustermim.theory.graphs import class_mass, inverse, token_joint, token_matrix
from clustermim.theory.inputs import Weights, as_labels, as_prior, as_weights, check_ratio

MAX_POINTS = 10  # 115,975 partitions; 11 points have 678,570
BATCH = 4_096  # partitions evaluated at a time
TIE = 1e-10  # two bounds closer than this are equal


def set_partitions(n: int) -> list[tuple[int, ...]]:
    """Every partition of n points once, as a restricted-growth string, in lexicographic order.

    >>> set_partitions(3)
    [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2)]
    """
    if not 1 <= n <= MAX_POINTS:
        raise ConfigError(f"partitions can be enumerated for 1 to {MAX_POINTS} points, not {n}")
    partitions: list[tuple[int, ...]] = [(0,)]
    for _ in range(n - 1):
        partitions = [(*start, block) for start in partitions for block in range(max(start) + 2)]
    return partitions


def restricted_growth(tok: Sequence[int] | Ints) -> tuple[int, ...]:
    """A partition in the form in which equal partitions are equal: blocks numbered as they appear.

    >>> restricted_growth([2, 0, 2, 1])
    (0, 1, 0, 2)
    """
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(block), len(names)) for block in tok)


def partition_terms(M: Weights, y1: Input, partitions: Input) -> tuple[Floats, Floats]:
    """(Σλ², α) of many tokenizers of one small graph, each (B,).

    M: (N1, N2) weights. y1: (N1,) classes of the views. partitions: (B, N2) token ids below N2. Tokens of a coarser
    partition are sums of rows and columns of the identity's Q = P^{1/2} K P^{1/2}.
    """
    weights, total = as_weights(M)
    M, identity = weights / total, np.arange(weights.shape[1])
    root = np.sqrt(token_joint(M, identity).sum(axis=0))
    Q = root[:, None] * token_matrix(M, identity) * root
    mass = class_mass(M, identity, y1)
    rows = np.asarray(partitions, dtype=np.int64)
    spectral, error = np.empty(len(rows)), np.empty(len(rows))
    for batch in (slice(start, start + BATCH) for start in range(0, len(rows), BATCH)):
        member = (rows[batch, :, None] == identity).astype(np.float64)  # (B, N2, tokens)
        pairs = np.swapaxes(member, 1, 2) @ Q @ member  # (B, tokens, tokens)
        shares = mass @ member  # (B, classes, tokens)
        over_p = inverse(shares.sum(axis=1))
        spectral[batch] = np.einsum("bst,bst,bs,bt->b", pairs, pairs, over_p, over_p)
        error[batch] = 1 - np.einsum("bks,bks,bs->b", shares, shares, over_p)
    return spectral, np.clip(error, 0, None)


def winning_interval(sum_sq: Input, alpha: Input, which: int) -> tuple[float, float] | None:
    """The ratios r = c2/c1 ≥ 0 at which tokenizer `which` has the lowest Σλ² + r·α, or None if there are none.

    sum_sq, alpha: (B,) terms of the tokenizers. X beats Y where r is on the right side of
    (Σλ²_X − Σλ²_Y)/(α_Y − α_X). The upper end may be infinite.

    >>> winning_interval([1.0, 1.5, 2.0], [0.5, 0.2, 0.0], 1)
    (1.6666666666666667, 2.5)
    """
    spectral, error = np.asarray(sum_sq, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
    excess, gain = spectral[which] - spectral, error - error[which]
    if (excess[np.abs(gain) <= TIE] > TIE).any():
        return None
    more, less = gain > TIE, gain < -TIE
    low = max(float(np.max(excess[more] / gain[more], initial=0.0)), 0.0)
    high = float(np.min(excess[less] / gain[less], initial=math.inf))
    return (low, high) if low <= high + TIE else None


def interval_text(interval: tuple[float, float] | None) -> str:
    """Ratios as people read them: `1.2 … 3.4`, `from 3 on`, `nowhere`."""
    if interval is None:
        return "nowhere"
    low, high = interval
    return f"from {low:.4g} on" if high == math.inf else f"{low:.4g} … {high:.4g}"


def necessary_ratio(pi: Input) -> float:
    """(c−1)/(1−Σπ²): below it a single token beats the labels in every graph. pi: (c,) class shares, sum 1.

    >>> necessary_ratio([0.5, 0.5])
    2.0
    """
    shares = as_prior(pi)
    return (len(shares) - 1) / float(1 - shares @ shares) if len(shares) > 1 else 0.0


def sufficient_ratio(pi: Input) -> float:
    """max_{k≠k'}(1/π_k + 1/π_k'): from it on the labels are optimal in every graph. pi: (c,) class shares, sum 1.

    >>> sufficient_ratio([0.5, 0.5])
    4.0
    """
    shares = np.sort(as_prior(pi))
    return float(np.sum(1 / shares[:2])) if len(shares) > 1 else 0.0


def class_prior(M: Weights, y1: Input) -> Floats:
    """π: mass of each class of views, (c,)."""
    weights, total = as_weights(M)
    return class_mass(weights / total, np.zeros(weights.shape[1], dtype=np.int64), y1)[:, 0]


def critical_ratio(M: Weights, y1: Input, y2: Input) -> float:
    """r* = max over partitions with α > 0 of (c − Σλ²)/α: from it on the labels are optimal in this graph.

    M: (N1, N2) weights, at most 10 targets. y1, y2: classes of views and targets; no weight may join two classes.
    """
    report = check_theorem(M, y1, y2)
    if not report.admissible or report.optimal is None:
        raise DataError("a weight joins two classes: the theorem has no critical ratio for this graph")
    return report.optimal[0]


@dataclass(frozen=True)
class Tokenization:
    """One partition of the targets with its two terms and its bound at the ratio asked for."""

    tok: tuple[int, ...]
    sum_sq: float
    alpha: float
    bound: float


@dataclass(frozen=True, repr=False)
class TheoremReport(Result):
    """What enumerating every partition says about the label function of one graph."""

    ratio: float  # r = c2/c1 asked for
    partitions: int
    prior: tuple[float, ...]
    admissible: bool  # no weight joins two classes: the theorem's assumption
    labels: Tokenization
    optimal: tuple[float, float] | None  # the ratios at which the labels are a minimiser; r* is the lower end
    necessary: float
    sufficient: float
    best: Tokenization  # the first minimiser at `ratio`
    minimisers: int  # how many partitions reach the minimum
    labels_optimal: bool
    counterexample: Tokenization | None  # beats the labels at every ratio just below r*

    def __repr__(self) -> str:
        return f"TheoremReport(partitions={self.partitions}, labels optimal for c2/c1: {interval_text(self.optimal)})"

    def table(self) -> Table:
        """The labels, the best tokenizer and the one that beats the labels just below their critical ratio."""
        chosen = {"labels": self.labels, "lowest bound": self.best}
        if self.counterexample is not None and self.optimal is not None:
            chosen[f"beats the labels below {self.optimal[0]:.6g}"] = self.counterexample
        rows = [
            (name, " ".join(map(str, t.tok)), *(f"{value:.6f}" for value in (t.sum_sq, t.alpha, t.bound)))
            for name, t in chosen.items()
        ]
        shares = ", ".join(f"{share:.4g}" for share in self.prior)
        verdict = "optimal" if self.labels_optimal else "NOT optimal"
        caption = [
            f"assumption (no weight joins two classes): {'met' if self.admissible else 'NOT met'}",
            f"at c2/c1 = {self.ratio:g} the labels are {verdict}; {self.minimisers} reach the minimum",
            f"the labels are optimal for c2/c1: {interval_text(self.optimal)}",
        ]
        if self.admissible:
            rule = "with these class shares every graph needs c2/c1 ≥ {:.6g}; {:.6g} is enough for every graph"
            caption.append(rule.format(self.necessary, self.sufficient))
        title = f"{self.partitions} tokenizers of {len(self.labels.tok)} targets, class shares {shares}"
        return Table(title, ("", "tokens", "Σλ²", "α", "bound"), rows, "\n".join(caption))


def check_theorem(M: Weights, y1: Input, y2: Input, ratio: float = 2.5) -> TheoremReport:
    """Enumerate every tokenizer of a small graph and compare each with the labels.

    M: (N1, N2) weights, N2 ≤ 10. y1: (N1,), y2: (N2,) classes of the views and of the targets, compared by name.
    """
    weights, total = as_weights(M)
    dense: Floats = (weights if isinstance(weights, np.ndarray) else weights.toarray()) / total
    views, targets = dense.shape
    if targets > MAX_POINTS:
        raise ConfigError(f"{targets} targets are too many to enumerate: at most {MAX_POINTS}")
    check_ratio(ratio)
    for labels, points, name in ((y1, views, "views"), (y2, targets, "targets")):
        as_labels(labels, points, f"the labels of the {name}")
    both = as_labels(np.concatenate([np.asarray(y1), np.asarray(y2)]), views + targets)
    y1, y2 = both[:views], both[views:]
    every = np.array(set_partitions(targets))
    index = int(np.flatnonzero((every == restricted_growth(y2)).all(axis=1))[0])
    spectral, error = partition_terms(dense, y1, every)
    values = spectral + ratio * error
    ties = np.flatnonzero(values <= values.min() + TIE)

    def tokenization(i: int) -> Tokenization:
        return Tokenization(tuple(every[i].tolist()), float(spectral[i]), float(error[i]), float(values[i]))

    prior = class_prior(dense, y1)
    prior = prior[prior > 0]
    # the partition that sets the lower end of the labels' ratios has the largest (Σλ²_labels − Σλ²)/(α − α_labels) > 0
    gain = error - error[index]
    slopes = np.divide(spectral[index] - spectral, gain, out=np.full_like(gain, -np.inf), where=gain > TIE)
    return TheoremReport(
        ratio=ratio,
        partitions=len(every),
        prior=tuple(prior.tolist()),
        admissible=not dense[y1[:, None] != y2].any(),
        labels=tokenization(index),
        optimal=winning_interval(spectral, error, index),
        necessary=necessary_ratio(prior),
        sufficient=sufficient_ratio(prior),
        best=tokenization(int(ties[0])),
        minimisers=len(ties),
        labels_optimal=index in ties,
        counterexample=tokenization(int(np.argmax(slopes))) if slopes.max() > TIE else None,
    )
