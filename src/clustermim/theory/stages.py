"""The stages behind `clustermim theory`: audit, toy and theorem. Each prints its result; --json prints it as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from clustermim.errors import ConfigError
from clustermim.files import write_atomic
from clustermim.runs import to_json
from clustermim.theory.audit import audit
from clustermim.theory.files import read_weights
from clustermim.theory.graphs import class_mass
from clustermim.theory.inputs import as_weights
from clustermim.theory.render import audit_markdown, audit_values, print_audit, show
from clustermim.theory.theorem import TheoremReport, Tokenization, check_theorem, component_labels
from clustermim.theory.toy import Convention
from clustermim.theory.toy_report import ToyReport, interval_text, toy_report, weight_text

FIGURES = (".png", ".pdf", ".svg")
EIGENVALUES = 4  # shown in the table; --json has all


def theory_audit(json: bool = False, markdown: str | None = None) -> None:
    """Check every formula and claim of the paper against brute force, one row each.

    Args:
        json: print everything as JSON instead of tables.
        markdown: a file to write the audit to, as a document; nothing is printed then unless --json asks for it.
    """
    rows = audit()
    if markdown is not None:
        write_atomic(Path(markdown), audit_markdown(rows).encode())
    if json:
        _print_json(audit_values(rows))
    elif markdown is None:
        print_audit(rows)


def theory_toy(
    classes: int = 2,
    points: int = 20,
    shared: int = 4,
    tokenizer: str = "identity",
    tokens: int = 2,
    ratio: float = 2.5,
    convention: Convention = "latent",
    figure: str | None = None,
    json: bool = False,
) -> None:
    """Evaluate tokenizers of the paper's toy model: edge weights, spectrum, label error, bound, and who wins where.

    Args:
        classes: number of classes.
        points: points of each class.
        shared: points that every two classes share.
        tokenizer: identity, class, cross, pattern, or a file with one token id a point.
        tokens: number of tokens of the cross-class tokenizer.
        ratio: c2/c1, the weight of the label error against that of the spectrum.
        convention: what the label of a shared point is: excl (the paper's), disjoint, soft or latent.
        figure: an image file to draw the graphs, the trade-off and the regions of the order to.
        json: print everything as JSON instead of a table.
    """
    report = toy_report(classes, points, shared, tokenizer, tokens, ratio, convention)
    if figure is not None:
        from clustermim.theory.figures import toy_figure  # matplotlib is slow to import

        _save_figure(toy_figure(report), figure)
    if json:
        values = asdict(report)
        for row in values["rows"]:
            row["tok"] = row["tok"].tolist()
        _print_json({**values, "overlap": report.overlap})
    else:
        _print_toy(report)


def theory_theorem(
    weights: str,
    y1: list[int] | None = None,
    y2: list[int] | None = None,
    ratio: float = 2.5,
    json: bool = False,
) -> None:
    """Compare the labels with every other tokenizer of a small mask graph: are they optimal, and from which ratio on?

    Args:
        weights: joint weights of views × targets, at most 10 targets: a CSV, NPY or JSON file. A JSON object may also
            hold y1 and y2.
        y1: classes of the views; by default the connected components of the graph.
        y2: classes of the targets; by default the class that each target is seen with most.
        ratio: c2/c1 at which the minimum is looked for.
        json: print everything as JSON instead of text.
    """
    table, file_y1, file_y2 = read_weights(weights)
    views, targets = _labels(table, y1 or file_y1, y2 or file_y2)
    report = check_theorem(table, views, targets, ratio)
    if json:
        _print_json(asdict(report))
    else:
        show("\n".join(_theorem_lines(report)))


def _labels(table: Any, y1: list[int] | None, y2: list[int] | None) -> tuple[Any, Any]:
    """Classes of views and targets; those not given follow from the weights."""
    if y1 is None:
        if y2 is not None:
            raise ConfigError("y2 is given without y1: the classes of the views are needed too")
        views, targets = component_labels(table)
        if views.max() == 0:
            raise ConfigError("the weights join everything into one component: give the labels as y1 and y2")
        return views, targets
    if y2 is None:
        raw, total = as_weights(table)
        mass = class_mass(raw / total, np.arange(raw.shape[1]), y1)
        y2 = np.unique(np.asarray(y1))[np.argmax(mass, axis=0)].tolist()
    return y1, y2


def _print_toy(report: ToyReport) -> None:
    title = (
        f"{report.classes} classes × {report.points} points, {report.shared} shared by every two "
        f"(t = {report.overlap:g})"
    )
    table = Table("", "tokens", "intra", "inter", "eigenvalues", "Σλ²", "α", "bound", "wins for c2/c1", title=title)
    conventions = Table("", *report.rows[0].alpha, title="α by what the label of a shared point is")
    for row in report.rows:
        name = f"{row.name} *" if row.name == report.chosen else row.name
        eigenvalues = " ".join(f"{value:.4f}" for value in row.eigenvalues[:EIGENVALUES])
        more = " …" if len(row.eigenvalues) > EIGENVALUES else ""
        table.add_row(
            name, str(row.tokens), weight_text(row.intra), weight_text(row.inter), eigenvalues + more,
            f"{row.sum_sq:.5f}", f"{row.alpha[report.convention]:.5f}", f"{row.bound:.5f}", interval_text(row.wins),
        )  # fmt: skip
        conventions.add_row(name, *(f"{value:.5f}" for value in row.alpha.values()))
    order = "nowhere: there is no overlap, or nothing else"
    if report.window is not None and report.window[0] < report.window[1]:
        order = f"for c2/c1 in {interval_text(report.window)}"
    show(
        table,
        f"bound = Σλ² + {report.ratio:g}·α, α by convention {report.convention}; * is the tokenizer asked for",
        f"by the closed forms the paper's order, class < identity < cross, holds {order}",
        conventions,
    )


def _theorem_lines(report: TheoremReport) -> list[str]:
    """The report in sentences."""
    best = "are optimal" if report.labels_optimal else "are NOT optimal"
    lines = [
        f"{report.partitions} tokenizers of {len(report.labels.tok)} targets, class shares "
        + ", ".join(f"{share:.4g}" for share in report.prior),
        "assumption (no weight joins two classes): " + ("met" if report.admissible else "NOT met"),
        f"labels          {_tokenization(report.labels)}",
        f"at c2/c1 = {report.ratio:g} the labels {best}; {report.minimisers} reach the minimum, the first is",
        f"                {_tokenization(report.best)}",
        f"the labels are optimal for c2/c1: {interval_text(report.optimal)}",
    ]
    if report.admissible:
        lines.append(
            f"with these class shares every graph needs c2/c1 ≥ {report.necessary:.6g}; "
            f"{report.sufficient:.6g} is enough for every graph"
        )
    if report.counterexample is not None and report.optimal is not None:
        lines += [
            f"just below {report.optimal[0]:.6g} this tokenizer has a lower bound than the labels:",
            f"                {_tokenization(report.counterexample)}",
        ]
    elif report.counterexample is None:
        lines.append("no tokenizer beats the labels by a smaller Σλ²")
    return lines


def _tokenization(t: Tokenization) -> str:
    return f"{' '.join(map(str, t.tok))}   Σλ² {t.sum_sq:.6f}  α {t.alpha:.6f}  bound {t.bound:.6f}"


def _save_figure(figure: Any, path: str) -> None:
    suffix = Path(path).suffix.lower()
    if suffix not in FIGURES:
        raise ConfigError(f"--figure {path} must end in {', '.join(FIGURES)}")
    write_atomic(Path(path), lambda file: figure.savefig(file, format=suffix[1:], dpi=150))


def _print_json(value: Any) -> None:
    """Strict JSON on stdout: an infinite end of an interval becomes null."""
    print(to_json(value, indent=2))
