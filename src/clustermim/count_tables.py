"""Count tables as the metrics want them: checked once at the door, float64 inside.

A table R has one row a token and one column a class; R[i, j] is how many patches with token i came from
images of class j. Everything here accepts numpy arrays, torch tensors or nested lists.
"""

# ruff: noqa: E741  (l is the codebook size in every formula)

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from clustermim.errors import ConfigError, DataError

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


def check_counts(array: NDArray[Any], name: str, ndim: int) -> None:
    """Refuse an array of another rank, with negative or non-finite entries, or with nothing in it."""
    if array.ndim != ndim or array.size == 0:
        raise DataError(f"{name} must have {ndim} non-empty dimensions, not shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity")
    if array.min() < 0:
        raise DataError(f"{name} holds negative entries: counts cannot be below 0")
    if array.max() == 0:
        raise DataError(f"{name} is all zeros: no patch was counted")


def as_counts(values: Input, name: str, ndim: int) -> Floats:
    """Non-negative numbers with a positive total, as a float64 array of `ndim` dimensions."""
    array = to_array(values, name)
    check_counts(array, name, ndim)
    return array.astype(np.float64)


def as_table(R: Input) -> Floats:
    """A tokens × classes table, (l1, l2) float64."""
    return as_counts(R, "the token-class table", 2)


def as_tokens(tokens: Input, l: int) -> Ints:
    """Token ids (images, patches) within 0..l-1, at least two patches an image."""
    if l < 1:
        raise ConfigError(f"the codebook size must be at least 1, not {l}")
    array = to_array(tokens, "tokens")
    if array.dtype.kind not in "iu":
        raise DataError(f"tokens must be whole numbers, not {array.dtype}")
    if array.ndim != 2 or array.shape[0] == 0:
        raise DataError(f"tokens must have shape (images, patches), not {array.shape}")
    if array.shape[1] < 2:
        raise DataError("co-occurrence needs at least two patches an image")
    if array.min() < 0 or array.max() >= l:
        raise DataError(f"token ids must lie in 0..{l - 1}, found {array.min()}..{array.max()}")
    return array.astype(np.int64)


def gram_sum_sq(X: Floats) -> float:
    """‖X Xᵀ‖_F² = ‖Xᵀ X‖_F² from the smaller of the two products: O(rows · columns · min(rows, columns))."""
    gram = X @ X.T if X.shape[0] <= X.shape[1] else X.T @ X
    return float(np.vdot(gram, gram))
