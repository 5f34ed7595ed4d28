"""How the audit judges: a printed value against brute force, and a printed conclusion against exact numbers.

conclusion affected   the paper concludes something that is false by exact numbers
wrong                 a printed formula differs from brute force, and the paper goes on with it
typo                  it differs, but what the paper goes on to use agrees with brute force
right                 everything agrees
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

Verdict = Literal["right", "typo", "wrong", "conclusion affected"]
Number = Fraction | float


def show(value: Number) -> str:
    """A number as a reader wants it: a short fraction as such, anything else to five digits."""
    if isinstance(value, Fraction) and value.denominator < 1000:
        return str(value)
    return f"{float(value):.5g}"


@dataclass(frozen=True)
class Check:
    """A printed and an exact value on concrete numbers; as evidence, two exact values "one against the other"."""

    case: str
    printed: Number
    exact: Number
    second: str = "exact"  # what the second value is, if not that

    @property
    def agrees(self) -> bool:
        """Equal, without tolerance: exact values are rational, or rounded as the paper rounds."""
        return self.printed == self.exact

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: each number as it is written and as a decimal."""
        return {
            "case": self.case,
            "printed": str(self.printed),
            "exact": str(self.exact),
            "printed_value": float(self.printed),
            "exact_value": float(self.exact),
            "agrees": self.agrees,
        }


@dataclass(frozen=True)
class Claim:
    """Something the paper concludes: does it follow from what is printed, and is it so by exact numbers?"""

    text: str
    stated: bool
    holds: bool


@dataclass(frozen=True)
class AuditRow:
    """One formula or claim of the paper, judged."""

    number: int
    place: str
    printed: str
    exact: str
    checks: tuple[Check, ...]  # the printed formula against brute force
    used: tuple[Check, ...]  # what the paper goes on with, against brute force
    evidence: tuple[Check, ...]  # numbers on which only the claim rests
    claim: Claim | None
    kind: str  # letters: ok, T typo, D derivation slip, C conclusion affected
    verdict: Verdict
    why: str

    @property
    def example(self) -> str:
        """The most telling pair of numbers: where the formula fails, else what the claim rests on."""
        failing = [check for check in self.checks if not check.agrees]
        check = (*failing, *self.evidence, *self.checks)[0]
        if check in self.evidence:
            return f"{check.case}: {show(check.printed)} against {show(check.exact)}"
        return f"{check.case}: printed {show(check.printed)}, {check.second} {show(check.exact)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; fractions as text and as numbers."""
        lists = {name: [check.to_dict() for check in vars(self)[name]] for name in ("checks", "used", "evidence")}
        claim = None if self.claim is None else vars(self.claim)
        return {**vars(self), **lists, "claim": claim}


def judge(
    number: int,
    place: str,
    printed: Callable[..., Any],
    exact: str,
    why: str,
    checks: Sequence[Check] = (),
    used: Sequence[Check] = (),
    evidence: Sequence[Check] = (),
    claim: Claim | None = None,
) -> AuditRow:
    """A row with its verdict.

    printed: the formula, for its text. checks: that formula against brute force. used: what the paper uses in its
    place afterwards. evidence: numbers on which only the claim rests.
    """
    differs = not all(check.agrees for check in checks)
    slip = differs and bool(used) and all(check.agrees for check in used)
    affected = claim is not None and claim.stated and not claim.holds
    letters = [*(["T"] if slip else ["D"] if differs else []), *(["C"] if affected else [])]
    verdict: Verdict = "conclusion affected" if affected else "typo" if slip else "wrong" if differs else "right"
    text = (printed.__doc__ or "(changed)").strip().splitlines()[0]
    kind = ",".join(letters) or "ok"
    return AuditRow(
        number, place, text, exact, tuple(checks), tuple(used), tuple(evidence), claim, kind, verdict, why
    )  # fmt: skip
