"""Labels of train and test: both have them, and one class has one number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clustermim.data import Source
from clustermim.errors import DataError

_NAMED = 5  # classes an error message names


def need_labels(source: Source) -> None:
    """Refuse a source without labels."""
    if source.labels is None:
        raise DataError(
            f"{source.spec} has no labels, and an evaluation compares with them: "
            "use a folder with one subfolder a class, or another labelled source"
        )


def class_numbers(train: Tensor, train_names: Sequence[str], test: Tensor, test_names: Sequence[str]) -> Tensor:
    """The number in train of each class of test (classes of test,), from labels (n,) and (m,) and names of classes.

    By name, since a folder that lacks a class numbers the others anew; by number when one side has no names of
    its own. An error when test has images of a class of which train has none.
    """
    here, there = _names(train, train_names), _names(test, test_names)
    nameless = any(names == tuple(map(str, range(len(names)))) for names in (here, there))
    if nameless and set(here).isdisjoint(there):
        here = there[: len(here)] + here[len(there) :]
    number = {name: label for label, name in enumerate(here)}
    known = set(train.tolist())
    used = sorted(set(test.tolist()))
    lacking = [there[label] for label in used if number.get(there[label]) not in known]
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise DataError(
            f"the test set has images of {len(lacking)} classes that the train set lacks: "
            f"{', '.join(lacking[:_NAMED])}{more}; use train and test data of the same classes"
        )
    numbers = torch.zeros(len(there), dtype=torch.int64)
    for label in used:
        numbers[label] = number[there[label]]
    return numbers


def _names(labels: Tensor, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names) or tuple(map(str, range(int(labels.max()) + 1)))
