"""Titles that tell runs apart, in words people read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from clustermim.reports.collect import RunInfo

# Options that say where or how fast, or that have a column of their own.
NO_DIFFERENCE = {"stage", "tokenizer", "target", "device", "precision", "compile", "k", "backend", "weights"}
NO_DIFFERENCE |= {"watch", "watch_every"}
CELL = re.compile(r"-[0-9a-f]{12}$")  # how a study ends the name of a folder: for machines, so people get another name


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside text by their value.

    >>> sorted(["k-50", "k-5", "k-10"], key=natural)
    ['k-5', 'k-10', 'k-50']
    """
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """For each of some configurations, the options in which they differ, in words."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in NO_DIFFERENCE)
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    return [", ".join(f"{k} {config[k]}" for k in differing if config.get(k) is not None) for config in configs]


def first_distinct(candidates: Sequence[Sequence[str]]) -> list[str]:
    """For each list of titles, which grow longer, the first that no other list has at its place; or the last.

    >>> first_distinct([["a", "x/a"], ["a", "y/a"], ["b", "y/b"]])
    ['x/a', 'y/a', 'b']
    """
    counts = [Counter(titles) for titles in zip(*candidates, strict=True)]
    return [next((t for t, count in zip(own, counts, strict=True) if count[t] == 1), own[-1]) for own in candidates]


def make_titles(runs: Sequence[RunInfo], made: Sequence[str], differs: Sequence[str]) -> list[str]:
    """The title of each: the folder's own name, or the made one for a study's cell; longer where some are equal."""
    candidates = []
    for run, short, words in zip(runs, made, differs, strict=True):
        place = run.folder.resolve()
        long = f"{short}, {words}" if words else short
        cell = (short, long, f"{long}, {place.name[-12:]}")
        named = (place.name, f"{place.parent.name}/{place.name}", str(place))
        candidates.append(cell if CELL.search(place.name) else named)
    return first_distinct(candidates)
