"""Count tables as the metrics want them: checked once at the door, float64 inside.

A table R has one row a token and one column a class; R[i, j] is how many patches with token i came from
images of class j. Everything here accepts numpy arrays, torch tensors or nested lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from clustermim.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Input = ArrayLike | Tensor


def to_array(values: Input, name: str) -> NDArray[Any]:
    """The numbers as a numpy array of whatever numeric type they have; a tensor on the CPU is not copied."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:  # nested lists of unequal length
        raise DataError(f"{name} is ragged: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must hold numbers, not {array.dtype}")
    return array


def as_counts(values: Input, name: str, ndim: int) -> Floats:
    """Non-negative numbers with a positive total, as a float64 array of `ndim` dimensions."""
    array = to_array(values, name)
    if array.ndim != ndim or array.size == 0:
        raise DataError(f"{name} must have {ndim} non-empty dimensions, not shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity")
    if array.min() < 0:
        raise DataError(f"{name} holds negative entries: counts cannot be below 0")
    if array.max() == 0:
        raise DataError(f"{name} is all zeros: no patch was counted")
    return array.astype(np.float64)


def as_table(R: Input) -> Floats:
    """A tokens × classes table, (l1, l2) float64."""
    return as_counts(R, "the token-class table", 2)
