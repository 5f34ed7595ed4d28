"""What a table of images needs: the columns of the images and labels, and classes made of the latter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clustermim.data.arrays import check_labels
from clustermim.data.spec import Spec
from clustermim.errors import DataError

IMAGE_COLUMNS = ("image", "img", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
SPLIT_NAMES = ("train", "test", "validation", "val", "valid")  # of a set's parts, wherever it comes from


def find_columns(spec: Spec, columns: Sequence[str]) -> tuple[str, str | None]:
    """The names of the image column and of the label column, if there is one."""
    found: list[str | None] = []
    for option, usual in (("image", IMAGE_COLUMNS), ("label", LABEL_COLUMNS)):
        name = spec.options.get(option) or next((name for name in usual if name in columns), None)
        if name not in columns and (option in spec.options or option == "image"):
            raise DataError(
                f"{spec.text}: no {option} column {name or 'of a usual name'}; add ?{option}= one of "
                f"{', '.join(columns)}"
            )
        found.append(name)
    return str(found[0]), found[1]


def to_classes(
    where: str, values: Sequence[object], names: Sequence[str]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels (n,) and class names from a column of whole numbers or texts.

    A column of nothing, or of −1 as test sets on the hub have it, is no labels.
    """
    if all(value is None or value == -1 for value in values):
        return None, ()
    missing = sum(value is None for value in values)
    if missing:
        raise DataError(f"{where}: {missing} of {len(values)} labels are missing")
    if all(isinstance(value, str) for value in values):
        found, numbers = np.unique(np.array(values, dtype=str), return_inverse=True)
        return numbers.astype(np.int64), tuple(map(str, found))
    numbered = [int(value) for value in values if isinstance(value, int)]
    if len(numbered) < len(values):
        raise DataError(f"{where}: labels must be whole numbers or texts; name another column, ?label=…")
    labels = check_labels(where, np.array(numbered), len(values))
    count = int(labels.max()) + 1
    if names and count > len(names):
        raise DataError(f"{where}: label {count - 1} is beyond the {len(names)} names of classes")
    return labels, tuple(names) or tuple(map(str, range(count)))
