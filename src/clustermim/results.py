"""What the functions of the library return: small frozen dataclasses that print as tables, here and in notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table as text: its title, the names of its columns, its rows, and a sentence or two below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __str__(self) -> str:
        """Columns lined up: the first and the last to the left, numbers to the right."""
        lines = [list(self.columns), *([*row] for row in self.rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        numeric = [all(_is_number(row[place]) for row in self.rows) for place in range(len(self.columns))]

        def show(line: Sequence[str]) -> str:
            cells = zip(line, widths, numeric, strict=True)
            return "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells).rstrip()

        rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
        parts = [self.title, show(lines[0]), rule, *map(show, lines[1:]), *([self.caption] if self.caption else [])]
        return "\n".join(part for part in parts if part)

    def to_html(self) -> str:
        """The same for a notebook; everything is escaped."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        caption = f"<p>{html.escape(self.caption)}</p>" if self.caption else ""
        title = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{caption}"


class Result:
    """Base of what functions return: a frozen dataclass with a table of itself."""

    def table(self) -> Table:
        """The result as a table; `print` shows it."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, as a summary holds them; not finite numbers become None in JSON only."""
        assert is_dataclass(self)
        return asdict(self)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().to_html()


def percent(share: float) -> str:
    """A share as people read it.

    >>> percent(0.5512)
    '55.12 %'
    """
    return "" if math.isnan(share) else f"{100 * share:.2f} %"


def _is_number(text: str) -> bool:
    return not text or text[:1] in "+-−0123456789" or text == "nan"
