"""Tokenizers of the paper's toy model: edge weights, spectrum, label error, bound, and who wins where.

python -m paper.toy --shared 2 --convention excl --figure docs/images/toy.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.results import Table
from clustermim.theory.theorem import interval_text
from paper.closed import CONVENTIONS
from paper.shell import print_json, run
from paper.toy_report import ToyReport, toy_report, weight_text

FIGURES = (".png", ".pdf", ".svg")
EIGENVALUES = 4  # shown in the table; --json has all


def main(arguments: Sequence[str]) -> None:
    """Evaluate the tokenizers, draw them, print what was found."""
    parser = argparse.ArgumentParser(prog="python -m paper.toy", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--classes", type=int, default=2, help="number of classes")
    add("--points", type=int, default=20, help="points of each class")
    add("--shared", type=int, default=4, help="points that every two classes share")
    add("--tokenizer", default="identity", help="identity, class, cross, pattern, or a file with one token id a point")
    add("--tokens", type=int, default=2, help="number of tokens of the cross-class tokenizer")
    add("--ratio", type=float, default=2.5, help="c2/c1, the weight of the label error against that of the spectrum")
    add("--convention", default="latent", help=f"what the label of a shared point is: {', '.join(CONVENTIONS)}")
    add("--figure", help="an image file: graphs, trade-off and regions of the order")
    add("--json", action="store_true", help="print everything as JSON instead of a table")
    options = vars(parser.parse_args(arguments))
    figure, as_json = options.pop("figure"), options.pop("json")
    report = toy_report(**options)
    if figure is not None:
        from paper.figures import toy_figure  # matplotlib is slow to import

        _save_figure(toy_figure(report), figure)
    if as_json:
        values = asdict(report)
        for row in values["rows"]:
            row["tok"] = row["tok"].tolist()
        print_json({**values, "overlap": report.overlap})
    else:
        print(*tables(report), sep="\n\n")


def tables(report: ToyReport) -> tuple[Table, Table]:
    """The tokenizers with their bounds, and α by what the label of a shared point is."""
    title = (
        f"{report.classes} classes × {report.points} points, {report.shared} shared by every two "
        f"(t = {report.overlap:g})"
    )
    columns = ("", "tokens", "intra", "inter", "eigenvalues", "Σλ²", "α", "bound", "wins for c2/c1")
    rows, alphas = [], []
    for row in report.rows:
        name = f"{row.name} *" if row.name == report.chosen else row.name
        eigenvalues = " ".join(f"{value:.4f}" for value in row.eigenvalues[:EIGENVALUES])
        more = " …" if len(row.eigenvalues) > EIGENVALUES else ""
        rows.append((
            name, str(row.tokens), weight_text(row.intra), weight_text(row.inter), eigenvalues + more,
            f"{row.sum_sq:.5f}", f"{row.alpha[report.convention]:.5f}", f"{row.bound:.5f}", interval_text(row.wins),
        ))  # fmt: skip
        alphas.append((name, *(f"{value:.5f}" for value in row.alpha.values())))
    order = "nowhere: there is no overlap, or nothing else"
    if report.window is not None and report.window[0] < report.window[1]:
        order = f"for c2/c1 in {interval_text(report.window)}"
    caption = (
        f"bound = Σλ² + {report.ratio:g}·α, α by convention {report.convention}; * is the tokenizer asked for\n"
        f"by the closed forms the paper's order, class < identity < cross, holds {order}"
    )
    first = Table(title, columns, rows, caption)
    return first, Table("α by what the label of a shared point is", ("", *report.rows[0].alpha), alphas)


def _save_figure(figure: Any, path: str) -> None:
    suffix = Path(path).suffix.lower()
    if suffix not in FIGURES:
        raise ConfigError(f"--figure {path} must end in {', '.join(FIGURES)}")
    write_atomic(Path(path), lambda file: figure.savefig(file, format=suffix[1:], dpi=150))


if __name__ == "__main__":
    sys.exit(run(main))
