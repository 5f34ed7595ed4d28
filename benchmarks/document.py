"""Records of speed and memory as one page: `python -m benchmarks.document` writes docs/performance.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sections import ELSEWHERE, SECTIONS
from clustermim.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parents[1]
RECORDS, PAGE, FIGURE = HERE / "results" / "benchmarks", HERE / "docs" / "performance.md", "images/growth.png"
HEAD = """# Performance

Written by `python -m benchmarks.document` from the records under `results/benchmarks/`; `make bench` makes these
anew. Compare ratios: what took turns in one run was disturbed by the same things, and seconds of different records were
not. A cell with several numbers shows their median and, in parentheses, the lowest and highest."""


def document(records: Path) -> str:
    """The whole page."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(records.glob("*.json"))}
    known = [name for name in SECTIONS if name in found]
    unknown = [name for name in found if name not in SECTIONS and name not in ELSEWHERE]
    return "\n\n".join([HEAD, *(section(name, found[name]) for name in known + unknown)]) + "\n"


def section(name: str, record: dict[str, Any]) -> str:
    """One record: what was measured, its tables, and where its numbers come from."""
    title, about = SECTIONS.get(name, (name.replace("-", " ").capitalize(), ""))
    machine, results = record["machine"], record["results"]
    if name == "growth":
        about += f"\n\n![How cost grows]({FIGURE})"
    given = {key: value if isinstance(value, list) else [value] for key, value in record["config"].items()}
    config = ", ".join(f"{key.replace('_', ' ')} {' and '.join(map(shown, all_))}" for key, all_ in given.items())
    origin = (
        f"`results/benchmarks/{name}.json`: {config}. {machine['cores']} cores ({machine['processor']}), "
        f"{machine['threads']} threads, torch {record['versions']['torch']}, commit {str(record['git_commit'])[:12]}."
    )
    parts = results.values() if isinstance(results, dict) and all(map(is_rows, results.values())) else [results]
    return "\n\n".join(filter(None, [f"## {title}", about, *map(table, parts), origin]))


def is_rows(part: Any) -> bool:
    return isinstance(part, list) and all(isinstance(row, dict) for row in part)


def table(results: Any) -> str:
    """Rows as they are; a dictionary of dictionaries with its keys in front; other values by their names."""
    if isinstance(results, dict) and results and all(isinstance(value, dict) for value in results.values()):
        results = [{"": key, **value} for key, value in results.items()]
    elif isinstance(results, dict):
        results = [{"what": key.replace("_", " "), "measured": shown(value)} for key, value in flat(results)]
    rows = [dict(flat(row)) for row in results]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [[column.replace("_", " ") for column in columns], ["---"] * len(columns)]
    lines += [[shown(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, those of inner dictionaries with the outer name in front."""
    for key, value in row.items():
        name = f"{prefix} {key}".strip()
        yield from flat(value, name) if isinstance(value, dict) else [(name, value)]


def shown(value: Any) -> str:
    """A value as a reader wants it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and len(value) > 2 and all(isinstance(one, int | float) for one in value):
        return f"{shown(statistics.median(value))} ({shown(min(value))} … {shown(max(value))})"
    if isinstance(value, list):
        return " … ".join(map(shown, value))
    return f"`{value}`" if "?" in str(value) else str(value)


def draw(results: dict[str, Any], path: Path) -> None:
    """Cost against each size, on axes of powers: a straight line of slope 1 is proportional."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots(2, 3).flat
    kmeans, step = results["kmeans"], results["step"]
    for name, plot in zip(("patches", "k", "dimension"), axes, strict=False):  # in this order none is lost
        rows = varied(kmeans, name, ("patches", "k", "dimension"))
        for what, label in (("fit_seconds", "fit"), ("tokenize_seconds", "tokenize all")):
            plot.loglog([row[name] for row in rows], [row[what] for row in rows], "o-", label=label)
        plot.set(xlabel={"k": "clusters", "dimension": "numbers of a patch"}.get(name, name), ylabel="seconds")
        plot.legend()
        label_sizes(plot, [row[name] for row in rows])
    for name, plot in zip(("tokens", "batch"), axes, strict=False):
        rows = varied(step, name, ("tokens", "batch"))
        plot.loglog([row[name] for row in rows], [row["step_seconds"] for row in rows], "o-")
        plot.set(
            xlabel={"tokens": "tokens of an image", "batch": "images of a batch"}[name], ylabel="seconds of a step"
        )
        label_sizes(plot, [row[name] for row in rows])
    plot = next(axes)
    names = [f"{row['processes']} × {row['threads']}" for row in results["ranks"]]
    plot.bar(names, [row["images_per_second"] for row in results["ranks"]])
    plot.set(xlabel="processes × threads", ylabel="images a second")
    figure.savefig(path, dpi=80, metadata={"Software": None})


def label_sizes(plot: Axes, sizes: list[int]) -> None:
    """The sizes that were measured as the marks of the x axis."""
    plot.set_xticks(sizes, [f"{size:,}" for size in sizes])
    plot.xaxis.minorticks_off()


def varied(rows: list[dict[str, Any]], name: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows in which one size changes while the others have their most frequent values, each once, in order."""
    base = {other: statistics.mode(row[other] for row in rows) for other in names if other != name}
    chosen = {row[name]: row for row in rows if all(row[other] == value for other, value in base.items())}
    return [chosen[value] for value in sorted(chosen)]


if __name__ == "__main__":
    growth = RECORDS / "growth.json"
    if growth.exists():
        draw(json.loads(growth.read_text(encoding="utf-8"))["results"], PAGE.parent / FIGURE)
    write_atomic(PAGE, document(RECORDS).encode())
