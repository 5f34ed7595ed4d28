"""The figure of the toy model: graphs of the three tokenizers, the trade-off of the bound, where the order holds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from clustermim.count_tables import Floats, Ints
from clustermim.theory.toy import class_gram, token_counts, toy_incidence
from paper.closed import toy_closed_exact
from paper.order import order_window
from paper.toy_report import ToyReport, ToyRow, weight_text

INTRA, MIXED, INTER = "#2b6cb0", "#b7bcc4", "#d1495b"
REGION_COLOURS = ("#f4d9d0", "#f6ecc9", "#cfe6d4", "#d5dff0")
REGION_NAMES = (
    "cross < class < identity",
    "class < cross < identity",
    "class < identity < cross (the paper's order)",
    "identity < class < cross",
)
TITLES = {"identity": "identity (MAE-like)", "class": "class-wise", "cross": "cross-class", "pattern": "by region"}
MARKERS = "osD^vP"  # a tokenizer with more tokens is drawn with one marker
DRAWN = 8  # points of a region that are drawn; more would only be a blot


def toy_figure(report: ToyReport) -> Figure:
    """Three augmentation graphs above, (Σλ², α) and the regions of (t, r) below."""
    graphs = 2.4 if report.classes == 2 else 4.0  # inches; two classes lie side by side
    figure = Figure(figsize=(12, graphs + 5.5), layout="constrained")
    grid = figure.add_gridspec(2, 6, height_ratios=(graphs, 4.8))
    Z = toy_incidence(report.points, report.shared, report.classes)
    for i, row in enumerate(report.rows[:3]):
        draw_graph(figure.add_subplot(grid[0, 2 * i : 2 * i + 2]), Z, row)
    draw_trade_off(figure.add_subplot(grid[1, :3]), report)
    draw_regions(figure.add_subplot(grid[1, 3:]), report)
    title = f"Toy model: {report.classes} classes of {report.points} points, {report.shared} shared by every two"
    _graph_legend(figure, f"{title} (t = {report.overlap:.4g})")
    return figure


def draw_graph(axes: Axes, Z: Ints, row: ToyRow) -> None:
    """The augmentation graph of one tokenizer; an edge is as dark as it is heavy. Tokens are told by marker."""
    shown, where = _places(Z)
    G = class_gram(token_counts(Z, row.tok))
    strength = np.clip(Z[shown] @ G @ Z[shown].T, 0, 1)  # A·sn²: 1 within a class of its own
    common = Z[shown] @ Z[shown].T
    exclusive = Z[shown].sum(axis=1) == 1
    first, second = np.triu_indices(len(shown), 1)
    both = exclusive[first] & exclusive[second]
    kinds = np.where(~both, 1, np.where(common[first, second] > 0, 0, 2))
    for kind, colour in ((1, MIXED), (0, INTRA), (2, INTER)):
        chosen = kinds == kind
        if chosen.any():
            lines = list(np.stack([where[first[chosen]], where[second[chosen]]], axis=1))
            alpha = 0.55 * strength[first[chosen], second[chosen]]
            axes.add_collection(LineCollection(lines, colors=colour, alpha=alpha, linewidths=0.7, zorder=1))
    for i, point in enumerate(shown):
        token = int(row.tok[point])
        marker, colour = ("o", "#333333") if row.tokens > len(MARKERS) else (MARKERS[token], f"C{token}")
        face = colour if exclusive[i] else "white"
        axes.plot(*where[i], marker=marker, color=colour, markerfacecolor=face, markersize=6, zorder=2)
    axes.margins(0.06)
    axes.set(aspect="equal", title=TITLES.get(row.name, row.name))
    axes.set_axis_off()
    text = f"weights: intra {weight_text(row.intra)}   inter {weight_text(row.inter)}   ({row.tokens} tokens)"
    axes.text(0.5, -0.02, text, transform=axes.transAxes, ha="center", va="top", fontsize=9)


def _graph_legend(figure: Figure, title: str) -> None:
    handles = [
        Line2D([], [], color=INTRA, label="edge within a class"),
        Line2D([], [], color=INTER, label="edge between classes"),
        Line2D([], [], color=MIXED, label="edge of a shared point"),
        Line2D([], [], color="#333333", marker="o", markerfacecolor="white", linestyle="", label="shared point"),
        Line2D([], [], marker="", linestyle="", label="marker and colour: token"),
    ]
    legend = figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=9, frameon=False)
    legend.set_title(title, FontProperties(size=13))


def _places(Z: Ints) -> tuple[Ints, Floats]:
    """(points drawn, their positions): each region on a small circle, classes around a big one, overlaps between."""
    s = Z.shape[1]
    angles = np.pi * (1 + 2 * np.arange(s) / s)
    centres = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    apart = 2 * np.sin(np.pi / s)  # distance of neighbouring classes
    patterns, inverse = np.unique(Z, axis=0, return_inverse=True)
    shown: list[int] = []
    places: list[Floats] = []
    for region, pattern in enumerate(patterns):
        points = np.flatnonzero(inverse == region)[:DRAWN]
        centre = pattern @ centres / pattern.sum()
        radius = apart * (0.3 if pattern.sum() == 1 else 0.12) * (len(points) > 1)
        turns = 2 * np.pi * (np.arange(len(points)) + 0.5) / len(points)
        places.append(centre + radius * np.stack([np.cos(turns), np.sin(turns)], axis=1))
        shown += points.tolist()
    return np.array(shown), np.concatenate(places)


def draw_trade_off(axes: Axes, report: ToyReport) -> None:
    """Σλ² against α: the closed curve of class-exchangeable tokenizers, the tokenizers, lines of equal bound."""
    base = toy_closed_exact(report.points, report.shared, report.classes, "identity")
    cross = toy_closed_exact(report.points, report.shared, report.classes, "cross")
    gamma = np.linspace(0, 1, 200) * float(base.gamma)
    ends = [float(getattr(closed, f"alpha_{report.convention}")) for closed in (cross, base)]
    slope = (ends[1] - ends[0]) / float(base.gamma) if base.gamma else 0.0
    spectral = 1 + (report.classes - 1) * float(base.theta) ** 2 * gamma**2
    axes.plot(
        spectral, ends[0] + slope * gamma, color="#888888", linewidth=1.2, label="tokenizers symmetric in the classes"
    )
    for row, marker in zip(report.rows, "osD^", strict=False):
        wins = "" if row.wins is None else "  ← lowest bound" if row.wins[0] <= report.ratio <= row.wins[1] else ""
        label = f"{TITLES.get(row.name, 'the file')}: bound {row.bound:.3f}{wins}"
        axes.plot(row.sum_sq, row.alpha[report.convention], marker, markersize=8, label=label)
    lowest = min(row.bound for row in report.rows)
    if report.ratio > 0:
        x = np.array([spectral.min(), spectral.max()])
        label = f"equal bound, c2/c1 = {report.ratio:g}"
        axes.plot(x, (lowest - x) / report.ratio, color="#444444", linestyle=":", linewidth=1, label=label)
    pad = 0.06 * max(ends[0] - ends[1], 1e-3)
    axes.set(xlabel="Σλ²  (spectral term)", ylabel=f"α  (label error, {report.convention})", title="The trade")
    axes.set_ylim(min(ends[1], *(row.alpha[report.convention] for row in report.rows)) - pad, ends[0] + pad)
    _legend_below(axes)


def _legend_below(axes: Axes, handles: list[Artist] | None = None) -> None:
    """Two columns under the axis label, where they cover nothing."""
    handles = axes.get_legend_handles_labels()[0] if handles is None else handles
    axes.legend(handles=handles, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)


def draw_regions(axes: Axes, report: ToyReport) -> None:
    """Which order the three bounds have at overlap t and ratio r, by the closed forms."""
    s = report.classes
    overlaps = np.linspace(0, 1 / (s - 1), 401)[1:-1]
    windows = np.array([order_window(float(t), s, report.convention) for t in overlaps])
    thetas = np.array([float(1 - s * Fraction(float(t)) / 2) for t in overlaps])
    top = max(3.0 * s, 1.2 * report.ratio)
    edges = [np.zeros_like(overlaps), windows[:, 0] * thetas, windows[:, 0], windows[:, 1], np.full_like(overlaps, top)]
    for low, high, colour in zip(edges[:-1], edges[1:], REGION_COLOURS, strict=True):
        axes.fill_between(overlaps, np.minimum(low, top), np.minimum(high, top), color=colour, linewidth=0)
    for line in (windows[:, 0], windows[:, 1]):
        axes.plot(overlaps, line, color="#4a7c59", linewidth=1)
    axes.axhline(2.5, color="#444444", linestyle="--", linewidth=1)
    axes.text(overlaps[-1], 2.5, "the paper's 5/2 ", ha="right", va="bottom", fontsize=8)
    axes.plot(report.overlap, report.ratio, "k*", markersize=12, clip_on=False, zorder=3)
    patches = [Patch(color=colour, label=name) for colour, name in zip(REGION_COLOURS, REGION_NAMES, strict=True)]
    star = Line2D([], [], color="k", marker="*", linestyle="", markersize=10, label="this model")
    _legend_below(axes, handles=[*patches[::-1], star])
    axes.set(xlim=(0, 1 / (s - 1)), ylim=(0, top), xlabel="t = m/n  (overlap)", ylabel="r = c2/c1")
    axes.set_title(f"Order of the bounds, lowest first ({report.convention})")
