"""The audit as a terminal table, as Markdown and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from paper.correlation import Correlation, leave_one_out, table_correlations
from paper.readings import capacity_conflicts, reading_ranges
from paper.shell import show
from paper.verdicts import AuditRow

COLOURS = {"right": "green", "typo": "yellow", "wrong": "red", "conclusion affected": "bold red"}


def audit_values(rows: Sequence[AuditRow]) -> dict[str, Any]:
    """Everything the audit found, for JSON."""
    low, high = leave_one_out()
    return {
        "rows": [row.to_dict() for row in rows],
        "verdicts": verdict_counts(rows),
        "correlations": [vars(correlation) for correlation in table_correlations()],
        "leave_one_out": {"low": low, "high": high},
        "tcas_ranges": [vars(variant) for variant in reading_ranges()],
        "capacity_conflicts": [vars(capacity) for capacity in capacity_conflicts()],
    }


def verdict_counts(rows: Sequence[AuditRow]) -> dict[str, int]:
    """How many rows have each verdict."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in COLOURS}


def print_audit(rows: Sequence[AuditRow]) -> None:
    """The audit on the terminal."""
    table = Table("#", "where", "printed, exact, on numbers", "why", title="Audit of the paper", show_lines=True)
    for row in rows:
        where = Text.assemble(row.place, "\n", (row.verdict, COLOURS[row.verdict]))
        values = Text(f"printed  {row.printed}\nexact    {row.exact}\n{row.example}")
        table.add_row(str(row.number), where, values, Text(row.why))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(rows).items())
    show(table, f"{len(rows)} rows: {counts}", "")
    for title, header, lines in _extra_tables():
        extra = Table(*header, title=title)
        for line in lines:
            extra.add_row(*line)
        show(extra)


def audit_markdown(rows: Sequence[AuditRow]) -> str:
    """The audit as a Markdown document."""
    header = ("#", "where", "printed", "exact", "on numbers", "verdict", "why")
    lines = [
        (str(row.number), row.place, row.printed, row.exact, row.example, f"**{row.verdict}**", row.why) for row in rows
    ]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(rows).items())
    parts = [
        "# Audit of the paper",
        "Written by `python -m paper.audit --markdown docs/audit.md`; do not edit. Every verdict is computed: the "
        "printed formula is evaluated beside brute force in exact rationals. *typo*: it differs, but the paper goes on "
        "with the right one. *wrong*: it differs. *conclusion affected*: something the paper concludes is false.",
        f"{len(rows)} rows: {counts}.",
        _markdown_table(header, lines),
    ]
    for title, extra_header, extra_lines in _extra_tables():
        parts += [f"## {title}", _markdown_table(extra_header, extra_lines)]
    return "\n\n".join(parts) + "\n"


def _extra_tables() -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """(title, header, lines) of the correlation, the ranges of TCAS and the conflicts with the codebook's capacity."""
    low, high = leave_one_out()
    correlations = [_correlation_line(correlation) for correlation in table_correlations()]
    ranges: list[tuple[str, ...]] = [
        (
            r.variant,
            str(r.classes),
            f"{r.low:.5f}",
            f"{r.high:.5f}",
            "" if r.possible is None else f"{r.possible} of 16",
        )
        for r in reading_ranges()
    ]
    capacities: list[tuple[str, ...]] = [
        (str(c.k), c.method, f"{c.printed:.2f}", f"{c.least:.4f}") for c in capacity_conflicts()
    ]
    return [
        (
            f"TCAS and accuracy in the paper's 16 rows (leaving one out: r from {low:.3f} to {high:.3f})",
            ("rows", "accuracy", "n", "Pearson r", "95 % interval", "p", "R²", "Spearman", "Kendall"),
            correlations,
        ),
        (
            "What each reading of TCAS can give, for the table's codebook sizes",
            ("variant", "classes", "least", "most", "printed values in reach"),
            ranges,
        ),
        (
            "Printed values below what an evenly used codebook allows (reading c, 100 balanced classes)",
            ("K", "tokenizer", "printed", "least"),
            capacities,
        ),
    ]


def _correlation_line(c: Correlation) -> tuple[str, ...]:
    interval = "–" if c.low is None or c.high is None else f"{c.low:+.2f} … {c.high:+.2f}"
    numbers = (f"{c.pearson:+.3f}", interval, f"{c.p:.2g}", f"{c.r_squared:.2f}", f"{c.spearman:+.3f}")
    return (c.rows, c.accuracy, str(c.count), *numbers, f"{c.kendall:+.3f}")


def _markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
