"""The table of a study on a terminal, or as Markdown for a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from clustermim.errors import ConfigError
from clustermim.mean_ci import MeanCI
from clustermim.studies.correlation import Panel, panels
from clustermim.studies.description import Study
from clustermim.studies.table import Row, columns, differences

PANEL = ("", "rows", "Pearson", "Spearman", "Kendall")
BORDER = 3  # what a column of a table takes beside its text
FILE_WIDTH = 1000  # a file, unlike a terminal, has room for all columns


def print_table(study: Study, rows: Sequence[Row], markdown: bool = False) -> None:
    """Rows, the differences between them, and beside each number what the paper prints."""
    if not rows:
        raise ConfigError(f"the study {study.name} describes no table")
    if markdown:
        print(to_markdown(study, rows))
        return
    console = Console(highlight=False, markup=False, width=None if Console().is_terminal else FILE_WIDTH)
    for table in tables(study.title, header(study), [cells(study, row) for row in rows], console.width):
        console.print(table)
    for line in difference_lines(study, rows):
        console.print(line, soft_wrap=True)
    for panel in panels(study, rows):
        for table in tables(panel_title(panel), PANEL, list(panel_lines(panel)), console.width):
            console.print(table)


def tables(title: str, names: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> Iterator[Table]:
    """One table, or several where its columns need more room: no number is cut, each begins with the rows' names."""
    wide = [max(len(text) for text in column) + BORDER for column in zip(names, *lines, strict=True)]
    groups: list[list[int]] = [[]]
    for place in range(1, len(names)):
        if groups[-1] and wide[0] + sum(wide[other] for other in [*groups[-1], place]) >= width:
            groups.append([])
        groups[-1].append(place)
    for number, group in enumerate(groups):
        table = Table(title=title if number == 0 else f"{title}, continued", title_justify="left")
        table.add_column(names[0], no_wrap=True)
        for place in group:
            paper = names[place].endswith(", paper")
            table.add_column(names[place], justify="right", no_wrap=True, style="dim" if paper else None)
        for line in lines:
            table.add_row(line[0], *(line[place] for place in group))
        yield table


def to_markdown(study: Study, rows: Sequence[Row]) -> str:
    """The same as Markdown."""
    parts = [_markdown(header(study), [cells(study, row) for row in rows]), *difference_lines(study, rows)]
    for panel in panels(study, rows):
        parts += [f"{panel_title(panel)}:", _markdown(PANEL, panel_lines(panel))]
    return "\n\n".join(parts)


def _markdown(names: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *lines])


def panel_title(panel: Panel) -> str:
    """What a table of correlations is about."""
    return f"Correlation with {panel.outcome}, {'all rows' if panel.family is None else f'within {panel.family}'}"


def panel_lines(panel: Panel) -> Iterator[list[str]]:
    """The rows of a table of correlations, the strongest first."""
    for score, found in sorted(panel.scores.items(), key=lambda item: -abs(item[1].spearman.value)):
        yield [score, str(found.rows), *(str(value) for value in found[1:])]


def header(study: Study) -> list[str]:
    """Names of the columns, the first of which is empty."""
    return ["", *(text for name in shown(study) for text in (name, f"{name}, paper")[: 1 + in_paper(study, name)])]


def shown(study: Study) -> dict[str, dict[str, Any]]:
    """The columns that are printed."""
    return {name: spec for name, spec in columns(study).items() if not spec.get("hidden")}


def cells(study: Study, row: Row) -> list[str]:
    """One row, as texts."""
    texts = [row.name]
    for name, spec in shown(study).items():
        texts.append(number(row.estimate(name), spec.get("decimals", 2)))
        if in_paper(study, name):
            texts.append(str((study.table.get("paper") or {}).get(row.name, {}).get(name, "")))
    return texts


def in_paper(study: Study, column: str) -> bool:
    """Whether the paper has numbers for a column."""
    return any(column in values for values in (study.table.get("paper") or {}).values())


def difference_lines(study: Study, rows: Sequence[Row]) -> Iterator[str]:
    """One sentence for each difference."""
    for more, less, found in differences(study, rows):
        for name, spec in shown(study).items():
            if name not in found:
                continue
            estimate, decimals = found[name], spec.get("decimals", 2)
            mean, *ends = (f"{value:+.{decimals}f}" for value in (estimate.mean, *(estimate.interval() or ())))
            around = f", 95 % interval {ends[0]} … {ends[1]}" if ends else ""
            seeds = f"{estimate.number} seeds" if estimate.number > 1 else "one seed"
            yield f"{name}: {more} − {less} = {mean}{around} ({seeds})"


def number(estimate: MeanCI | None, decimals: int = 2) -> str:
    """Mean ± standard deviation, and nothing for what was not measured."""
    if estimate is None:
        return ""
    spread = "" if estimate.spread is None else f" ± {estimate.spread:.{decimals}f}"
    return f"{estimate.mean:.{decimals}f}{spread}"
