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
SCORES = {
    "debiased TCAS": "TCAS, debiased (lower should be better)",
    "transferability": "transferability (higher should be better)",
    "view_retrieval": "view_retrieval, without labels (higher should be better)",
}
TOLD = ("labels", "features of EfficientNet-Lite0")  # made with labels
NAMED = {"random tokens": "random", "labels": "labels", "features of EfficientNet-Lite0": "EfficientNet-Lite0",
         "whitened windows": "whitened windows"}  # fmt: skip
ORACLE = "labels"  # not a tokenizer to choose: it does not count, and where it lies far it is drawn at the edge
LOGARITHMIC = ("view_retrieval",)

Points = dict[str, tuple[float, float]]  # score and linear probe of each tokenizer


def main() -> None:
    figure = Figure(figsize=(13, 7.4), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    places = figure.subplots(len(STUDIES), len(SCORES), sharey="row")
    for line, (name, title) in zip(places, STUDIES.items(), strict=True):
        study = read_study(ROOT / "studies" / f"{name}.yaml")
        rows = make_rows(study, read_record(ROOT / "results" / f"{name}.json", study))
        for axes, score in zip(line, SCORES, strict=True):
            if score in LOGARITHMIC:
                axes.set_xscale("log")
            draw(axes, points_of(rows, score), title)
            axes.set_xlabel(SCORES[score])
        line[0].set_ylabel("linear probe, %")
    figure.savefig(ROOT / "docs" / "images" / "predictors.png", metadata={"Software": None})


def points_of(rows: list[Row], score: str) -> Points:
    """Those that have both."""
    return {
        row.name: (known.mean, given.mean)
        for row in rows
        if (known := row.estimate(score)) is not None and (given := row.estimate("linear probe")) is not None
    }


def draw(axes: Axes, points: Points, title: str) -> None:
    """One score against the linear probe, and their rank correlation."""
    counted = [point for name, point in points.items() if name != ORACLE]
    place, back = axes.transScale.transform, axes.transScale.inverted().transform
    low, high = (place((x, 1))[0] for x in (min(counted)[0], max(counted)[0]))
    left, right = (back((x, 1))[0] for x in (low - (high - low) / 8, high + (high - low) / 8))
    axes.set_xlim(left, right)
    for name, (x, y) in points.items():
        reported, far = name in TOLD, not left <= x <= right
        marker = "<" if x < left else ">" if x > right else "s" if reported else "o"
        shown = min(max(x, left), right)
        axes.plot(shown, y, marker, color="#c2410c" if reported else "#1d4ed8", alpha=0.75, clip_on=False)
        if name in NAMED:
            before = place((shown, 1))[0] > (low + high) / 2
            at = {"ha": "right" if before else "left", "xytext": (-7 if before else 7, -3)}
            text = f"{NAMED[name]} ({x:.2f})" if far else NAMED[name]
            axes.annotate(text, (shown, y), textcoords="offset points", fontsize=8.5, **at)  # type: ignore[arg-type]
    found = correlate(*zip(*counted, strict=True))
    if found is not None:
        axes.set_title(f"{title}: rank correlation {found.spearman}", fontsize=9.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


if __name__ == "__main__":
    main()
