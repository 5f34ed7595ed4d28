"""What a study gave: its record, and the table of it as text or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clustermim.mean_ci import Difference, MeanCI
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
        """Rows with mean ± standard deviation over seeds, and what the paper prints."""
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
        return Table(self.study.title, names, lines)

    def tables(self) -> list[Table]:
        """The table, differences of its rows, correlations, and what was predicted beside what came."""
        found = [self.table(), *difference_tables(self.study, self.rows), *correlation_tables(self.study, self.rows)]
        if self.prediction is not None:
            found += comparison_tables(self.study, self.record, self.rows, self.prediction)
        return found

    def markdown(self) -> str:
        """All of it as Markdown."""
        table, *more = self.tables()
        parts = [to_markdown(table)]
        for panel in more:
            parts += [f"{panel.title}:", to_markdown(panel), *([panel.caption] if panel.caption else [])]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        return "".join(table.to_html() for table in self.tables())

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


def difference_tables(study: Study, rows: Sequence[Row]) -> Iterator[Table]:
    """The differences that a table asks for, if any can be told; costs are read off the table itself."""
    names = {name: decimals for name, decimals in shown(study).items() if not columns(study)[name].get("total")}
    found = [entry for entry in differences(study, rows) if entry[2].keys() & names.keys()]
    names = {name: decimals for name, decimals in names.items() if any(name in by_column for *_, by_column in found)}
    lines = []
    for more, less, by_column in found:
        seeds = dict.fromkeys(str(count) for name in names if name in by_column for count in by_column[name].numbers)
        cells = [difference(by_column.get(name), decimals) for name, decimals in names.items()]
        lines.append([f"{more} − {less}", *cells, " and ".join(seeds)])
    if names:
        yield Table("Differences of means, with Welch's 95 % interval", ["", *names, "seeds"], lines)


def difference(found: Difference | None, decimals: int = 2) -> str:
    """A difference with its interval, where there is one."""
    if found is None:
        return ""
    mean, *ends = (f"{value:+.{decimals}f}" for value in (found.mean, *(found.interval or ())))
    return f"{mean} ({' … '.join(ends)})" if ends else mean


def number(estimate: MeanCI | None, decimals: int = 2) -> str:
    """Mean ± standard deviation, and nothing for what was not measured."""
    if estimate is None:
        return ""
    spread = "" if estimate.spread is None else f" ± {estimate.spread:.{decimals}f}"
    return f"{estimate.mean:.{decimals}f}{spread}"
