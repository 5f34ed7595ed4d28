"""What was known before training against what training gave, drawn from kept results: docs/images/predictors.png.

python -m studies.draw_predictors
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clustermim.studies import read_study
from clustermim.studies.correlation import correlate
from clustermim.studies.records import read_record
from clustermim.studies.table import Row, make_rows

ROOT = Path(__file__).parent.parent
STUDIES = {"cifar10-tokenizers": "CIFAR-10", "imagenette-tokenizers": "Imagenette"}
SCORES = {"debiased TCAS": "TCAS, debiased (lower should be better)", "promise": "promise (higher should be better)"}
TOLD = ("labels", "features of EfficientNet-Lite0")  # made with labels
NAMED = {"random tokens": "random", "labels": "labels", "features of EfficientNet-Lite0": "EfficientNet-Lite0",
         "whitened windows": "whitened windows"}  # fmt: skip


def main() -> None:
    figure = Figure(figsize=(10, 7.4), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    places = figure.subplots(2, 2)
    for line, (name, title) in zip(places, STUDIES.items(), strict=True):
        study = read_study(ROOT / "studies" / f"{name}.yaml")
        rows = make_rows(study, read_record(ROOT / "results" / f"{name}.json", study))
        for axes, score in zip(line, SCORES, strict=True):
            draw(axes, rows, score, title)
    figure.savefig(ROOT / "docs" / "images" / "predictors.png", metadata={"Software": None})


def draw(axes: Axes, rows: list[Row], score: str, title: str) -> None:
    """One score against the linear probe, and their rank correlation."""
    points = {
        row.name: (known.mean, given.mean)
        for row in rows
        if (known := row.estimate(score)) is not None and (given := row.estimate("linear probe")) is not None
    }
    for name, (x, y) in points.items():
        axes.plot(x, y, "s" if name in TOLD else "o", color="#c2410c" if name in TOLD else "#1d4ed8", alpha=0.75)
        if name in NAMED:
            left = x > sum(axes_range(points)) / 2
            place = {"ha": "right" if left else "left", "xytext": (-7 if left else 7, -3)}
            axes.annotate(NAMED[name], (x, y), textcoords="offset points", fontsize=8.5, **place)  # type: ignore[arg-type]
    found = correlate(*zip(*points.values(), strict=True))
    if found is not None:
        axes.set_title(f"{title}, {found.rows} tokenizers: rank correlation {found.spearman}", fontsize=9.5)
    axes.set_xlabel(SCORES[score])
    axes.set_ylabel("linear probe, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def axes_range(points: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """The smallest and the largest score."""
    scores = [x for x, _ in points.values()]
    return min(scores), max(scores)


if __name__ == "__main__":
    main()
