"""Every tokenizer of a small graph compared with the labels: Theorem 1 of the paper (section 2.2), corrected.

The theorem's setting: M(x1|x2) > 0 only inside a class. The labels then have α = 0 and Σλ² = c, the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clustermim.count_tables import Floats, Input, Ints
from clustermim.errors import ConfigError
from clustermim.results import Result, Table
from clustermim.theory.graphs import class_mass, inverse, token_matrix
from clustermim.theory.inputs import Weights, as_labels, as_weights, check_ratio
from clustermim.theory.theorem import TIE, interval_text, necessary_ratio, sufficient_ratio, winning_interval

MAX_POINTS = 10  # 115,975 partitions; 11 points have 678,570
BATCH = 4_096  # partitions evaluated at a time


def set_partitions(n: int) -> list[tuple[int, ...]]:
    """Every partition of n targets once, as a restricted-growth string, in lexicographic order.

    >>> set_partitions(3)
    [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2)]
    """
    if not 1 <= n <= MAX_POINTS:
        raise ConfigError(f"tokenizers can be enumerated for 1 to {MAX_POINTS} targets, not {n}")
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


def partition_terms(M: Floats, y1: Input, partitions: Input) -> tuple[Floats, Floats]:
    """(Σλ², α) of many tokenizers of one small graph, each (B,).

    M: (N1, N2) weights. y1: (N1,) classes of the views. partitions: (B, N2) token ids below N2. Tokens of a coarser
    partition are sums of rows and columns of the identity's Q = P^{1/2} K P^{1/2}.
    """
    identity = np.arange(M.shape[1])
    mass = class_mass(M, identity, y1)
    root = np.sqrt(mass.sum(axis=0))
    Q = root[:, None] * token_matrix(M, identity) * root
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

    prior = class_mass(dense, np.zeros(targets, dtype=np.int64), y1)[:, 0]
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
