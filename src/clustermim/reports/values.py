"""What runs have measured, as plain values: scores of tokenizers, accuracies of encoders, and on which images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clustermim import scores
from clustermim.reports.collect import RunInfo

# The scores of a tokenizer that say which of two is better, by their name in the results of `score`.
SCORES = {name: name for name, row in scores.SCORES.items() if row.higher_is_better is not None}
# The accuracies of an encoder by the key that `accuracies_of` gives them, in the order of the table.
MEASURES = {
    "probe avg": "linear probe",
    "probe cls": "linear probe, class token",
    "mae avg": "linear probe by SGD",
    "mae cls": "linear probe by SGD, class token",
    "knn avg": "kNN",
    "knn cls": "kNN, class token",
    "finetune": "fine-tuned",
}


@dataclass(frozen=True)
class Value:
    """A number, with its 95 % interval when it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def number(value: Any) -> float | None:
    """A finite number, or None for anything else that a file may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def scores_of(results: dict[str, Any]) -> dict[str, Value]:
    """The scores among the results of `score`, by the keys of SCORES."""
    values = {}
    for name in SCORES:
        value = number(results.get(name))
        if value is not None:
            values[name] = Value(value, number(results.get(f"{name}_low")), number(results.get(f"{name}_high")))
    return values


def places_of(measured: Sequence[RunInfo]) -> list[str | None]:
    """The images of each measurement, and whose labels it learned where those differ: what has both in common compares.

    None where a measurement does not say.
    """
    sources = [tuple((run.summary.get(key) or {}).get("spec") for key in ("test_data", "data")) for run in measured]
    labels: dict[Any, set[Any]] = {}
    for test, train in sources:
        labels.setdefault(test, set()).add(train)
    return [
        None if not isinstance(test, str) else test if len(labels[test]) == 1 else f"{test}, labels of {train}"
        for test, train in sources
    ]


def accuracies_of(run: RunInfo) -> dict[str, Value]:
    """Accuracies in percent by the keys of MEASURES; a model trained from scratch measures no pretraining."""
    results = run.results
    if run.stage == "finetune":
        poolings = {} if run.config.get("from_scratch") else {"finetune": results}
    else:
        stage = "mae" if run.config.get("protocol") == "mae" else run.stage
        poolings = {f"{stage} {pooling}": result for pooling, result in results.items()}
    return {key: value for key, result in poolings.items() if key in MEASURES and (value := _accuracy(result))}


def _accuracy(result: Any) -> Value | None:
    value = number(result.get("accuracy")) if isinstance(result, dict) else None
    if value is None:
        return None
    ends = result.get("interval")
    low, high = (number(end) for end in ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
    return Value(100 * value, None if low is None else 100 * low, None if high is None else 100 * high)
