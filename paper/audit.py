"""The audit of the paper: every formula and claim that can be checked, beside brute force, with a computed verdict.

python -m paper.audit --markdown docs/audit.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from clustermim.files import write_atomic
from paper import audit_bounds, audit_claims, audit_weights
from paper.render import audit_markdown, audit_values, print_audit
from paper.shell import print_json, run
from paper.verdicts import AuditRow


def audit() -> list[AuditRow]:
    """One row for each of the 28 entries of the errata, in the paper's order."""
    rows = [*audit_weights.rows(), *audit_bounds.rows(), *audit_claims.rows()]
    return sorted(rows, key=lambda row: row.number)


def main(arguments: Sequence[str]) -> None:
    """Print the audit, or write it as a document."""
    parser = argparse.ArgumentParser(prog="python -m paper.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")
    parser.add_argument("--markdown", metavar="FILE", help="write the audit as a document; prints nothing but --json")
    options = parser.parse_args(arguments)
    rows = audit()
    if options.markdown is not None:
        write_atomic(Path(options.markdown), audit_markdown(rows).encode())
    if options.json:
        print_json(audit_values(rows))
    elif options.markdown is None:
        print_audit(rows)


if __name__ == "__main__":
    sys.exit(run(main))
