"""Theorem 1 on a small graph: the labels against every other tokenizer, and the ratios at which they are optimal.

python -m paper.theorem weights.csv
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import connected_components

from clustermim.count_tables import Ints
from clustermim.errors import ConfigError
from clustermim.theory import class_mass
from clustermim.theory.inputs import Weights, as_weights
from paper.files import read_weights
from paper.partitions import check_theorem
from paper.shell import print_json, run


def main(arguments: Sequence[str]) -> None:
    """Read the graph, enumerate its tokenizers, print what was found."""
    parser = argparse.ArgumentParser(prog="python -m paper.theorem", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "weights",
        help="joint weights of views × targets, at most 10 targets: a CSV, NPY or JSON file; a JSON object may also "
        "hold y1 and y2",
    )
    parser.add_argument("--y1", type=int, nargs="+", help="classes of the views (default: the connected components)")
    parser.add_argument("--y2", type=int, nargs="+", help="classes of the targets (default: seen with each most)")
    parser.add_argument("--ratio", type=float, default=2.5, help="c2/c1 at which the minimum is looked for")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of text")
    options = parser.parse_args(arguments)
    table, file_y1, file_y2 = read_weights(options.weights)
    report = check_theorem(table, *labels(table, options.y1 or file_y1, options.y2 or file_y2), options.ratio)
    if options.json:
        print_json(report.to_dict())
    else:
        print(report)


def labels(table: Any, y1: list[int] | None, y2: list[int] | None) -> tuple[Any, Any]:
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


def component_labels(M: Weights) -> tuple[Ints, Ints]:
    """(y1, y2): the finest labels under which no weight joins two classes, the graph's connected components."""
    weights = csr_array(as_weights(M)[0])
    parts = connected_components(block_array([[None, weights], [weights.T, None]]), directed=False)[1].astype(np.int64)
    return parts[: weights.shape[0]], parts[weights.shape[0] :]


if __name__ == "__main__":
    sys.exit(run(main))
