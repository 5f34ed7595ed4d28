"""What a study gave: its record, and the table of it as text or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clustermim.mean_ci import MeanCI
from clustermim.results import Result, Table
from clustermim.studies.comparison import comparison_tables
from clustermim.studies.correlation import correlation_tables
from clustermim.studies.description import Study
from clustermim.studies.table import Row, columns, differences, make_rows


@dataclass(frozen=True, repr=False)
class StudyResult(Result):
    """What a study gave.

    Args:
        study: its description.
        record: its complete cells, with their options, results and provenance.
        total: how many cells it has.
        prediction: what was predicted before its trainings, if anything was.
    """

    study: Study
    record: dict[str, Any]
    total: int = 0
    prediction: dict[str, Any] | None = None

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the table, with a number for each column and seed."""
        return make_rows(self.study, self.record)

    def to_dict(self) -> dict[str, Any]:
        """The record, as `--results` writes it."""
        return self.record

    def table(self) -> Table:
        """Rows with mean ± standard deviation over seeds, and what the paper prints; below, differences of rows."""
        paper = self.study.table.get("paper") or {}
        names, lines = [""], [[row.name] for row in self.rows]
        for name, decimals in shown(self.study).items():
            names.append(name)
            for row, line in zip(self.rows, lines, strict=True):
                line.append(number(row.estimate(name), decimals))
            if any(name in printed for printed in paper.values()):
                names.append(f"{name}, paper")
                for line in lines:
                    line.append(str(paper.get(line[0], {}).get(name, "")))
        return Table(self.study.title, names, lines, "\n".join(difference_lines(self.study, self.rows)))

    def tables(self) -> list[Table]:
        """The table, those of its correlations, and those that compare it with what was predicted."""
        found = [self.table(), *correlation_tables(self.study, self.rows)]
        if self.prediction is not None:
            found += comparison_tables(self.study, self.record, self.rows, self.prediction)
        return found

    def markdown(self) -> str:
        """All of it as Markdown."""
        table, *more = self.tables()
        parts = [to_markdown(table), *difference_lines(self.study, self.rows)]
        for panel in more:
            parts += [f"{panel.title}:", to_markdown(panel), *([panel.caption] if panel.caption else [])]
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables())) if self.rows else repr(self)

    def __repr__(self) -> str:
        return f"<StudyResult {self.study.name}: {len(self.record['cells'])} of {self.total} cells>"


def to_markdown(table: Table) -> str:
    """Columns and rows."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(study: Study) -> dict[str, int]:
    """The columns that are printed, with their decimals."""
    return {name: spec.get("decimals", 2) for name, spec in columns(study).items() if not spec.get("hidden")}


def difference_lines(study: Study, rows: Sequence[Row]) -> Iterator[str]:
    """One sentence for each difference."""
    for more, less, found in differences(study, rows):
        for name, decimals in shown(study).items():
            if name not in found or columns(study)[name].get("total"):  # a cost is read off the table
                continue
            mean, *ends = (f"{value:+.{decimals}f}" for value in (found[name].mean, *(found[name].interval or ())))
            around = f", 95 % interval {ends[0]} … {ends[1]}" if ends else ""
            seeds = " and ".join(map(str, dict.fromkeys(found[name].numbers)))
            yield f"{name}: {more} − {less} = {mean}{around} ({seeds} seed{'s' * (seeds != '1')})"


def number(estimate: MeanCI | None, decimals: int = 2) -> str:
    """Mean ± standard deviation, and nothing for what was not measured."""
    if estimate is None:
        return ""
    spread = "" if estimate.spread is None else f" ± {estimate.spread:.{decimals}f}"
    return f"{estimate.mean:.{decimals}f}{spread}"
