"""One toy model, several tokenizers: their weights, spectra, label errors, bounds, and where each of them wins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clustermim.count_tables import Ints
from clustermim.errors import ConfigError
from clustermim.theory.inputs import as_tokens, check_ratio
from clustermim.theory.theorem import winning_interval
from clustermim.theory.toy import tok_class, tok_cross, tok_identity, tok_pattern, toy_incidence, toy_sum_sq
from paper.closed import CONVENTIONS, Convention, convention_alpha, toy_spectrum, toy_weights
from paper.files import SUFFIXES, read_tokens
from paper.order import order_window

NAMES = ("identity", "class", "cross", "pattern")
SAME = 1e-12  # relative difference below which two edge weights are equal


@dataclass(frozen=True)
class ToyRow:
    """What one tokenizer does to the toy model."""

    name: str
    tok: Ints
    tokens: int
    intra: tuple[float, float] | None  # least and largest edge weight between exclusive points of one class
    inter: tuple[float, float] | None  # … of two classes; None when every point is shared
    eigenvalues: tuple[float, ...]  # the s that can be non-zero
    sum_sq: float
    alpha: dict[Convention, float]
    bound: float
    wins: tuple[float, float] | None  # ratios c2/c1 at which no other tokenizer of the report has a lower bound


@dataclass(frozen=True)
class ToyReport:
    """The toy model with the paper's three tokenizers, and the one asked for if it is another."""

    classes: int
    points: int
    shared: int
    ratio: float
    convention: Convention
    chosen: str
    rows: tuple[ToyRow, ...]
    window: tuple[float, float] | None  # ratios of the order class < identity < cross by closed forms; None for t = 0

    @property
    def overlap(self) -> float:
        """t = m/n."""
        return self.shared / self.points


def toy_report(
    classes: int, points: int, shared: int, tokenizer: str, tokens: int, ratio: float, convention: Convention
) -> ToyReport:
    """Evaluate the tokenizers. tokenizer: a name of NAMES or a file of token ids. tokens: of the cross-class one."""
    check_ratio(ratio)
    Z = toy_incidence(points, shared, classes)
    chosen: dict[str, Ints] = {"identity": tok_identity(Z), "class": tok_class(Z), "cross": tok_cross(Z, tokens)}
    if tokenizer not in chosen:
        chosen[tokenizer] = _other(Z, tokenizer)
    spectral = [toy_sum_sq(Z, tok) for tok in chosen.values()]
    errors = [convention_alpha(Z, tok, convention) for tok in chosen.values()]
    rows = tuple(
        _row(name, Z, tok, spectral[i] + ratio * errors[i], winning_interval(spectral, errors, i))
        for i, (name, tok) in enumerate(chosen.items())
    )
    window = order_window(shared / points, classes, convention) if shared else None
    return ToyReport(classes, points, shared, ratio, convention, tokenizer, rows, window)


def _other(Z: Ints, tokenizer: str) -> Ints:
    if tokenizer == "pattern":
        return tok_pattern(Z)
    if Path(tokenizer).suffix not in SUFFIXES:
        raise ConfigError(f"tokenizer must be one of {', '.join(NAMES)} or a file of token ids, not {tokenizer!r}")
    return as_tokens(read_tokens(tokenizer), len(Z))


def _row(name: str, Z: Ints, tok: Ints, value: float, wins: tuple[float, float] | None) -> ToyRow:
    weights = toy_weights(Z, tok)
    classes = range(len(weights))
    intra = [float(weights[a, a]) for a in classes]
    inter = [float(weights[a, b]) for a in classes for b in classes if a != b]
    exclusive = bool((Z.sum(axis=1) == 1).any())
    return ToyRow(
        name=name,
        tok=tok,
        tokens=int(tok.max()) + 1,
        intra=(min(intra), max(intra)) if exclusive else None,
        inter=(min(inter), max(inter)) if exclusive else None,
        eigenvalues=tuple(toy_spectrum(Z, tok).tolist()),
        sum_sq=toy_sum_sq(Z, tok),
        alpha={convention: convention_alpha(Z, tok, convention) for convention in CONVENTIONS},
        bound=value,
        wins=wins,
    )


def weight_text(pair: tuple[float, float] | None) -> str:
    """An edge weight, or its range over the classes."""
    if pair is None:
        return "–"
    low, high = pair
    return f"{low:.4g}" if high - low <= SAME * high else f"{low:.4g}–{high:.4g}"
