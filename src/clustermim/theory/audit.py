"""The audit of the paper: every formula and claim that can be checked, beside brute force, with a computed verdict."""

from __future__ import annotations

from clustermim.theory import audit_bounds, audit_claims, audit_weights
from clustermim.theory.verdicts import AuditRow


def audit() -> list[AuditRow]:
    """One row for each of the 28 entries of the errata, in the paper's order."""
    rows = [*audit_weights.rows(), *audit_bounds.rows(), *audit_claims.rows()]
    return sorted(rows, key=lambda row: row.number)
