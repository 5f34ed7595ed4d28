"""What users hand over, checked once: weights, tokens, labels, the ratio of the bound's constants.

The weights of a mask graph may have any scale: they are divided by their total, silently when they are whole numbers
(counts), with a warning when they are not.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used

from clustermim.count_tables import Input, Ints, as_counts, to_array
from clustermim.errors import ConfigError, DataError

Weights = Any  # (N1, N2) array, nested lists, or any scipy.sparse matrix
Matrix = Any  # (N1, l) float64: numpy array, or csr_array when the weights were sparse

SUM_TOLERANCE = 1e-6  # how far from one a table of probabilities may sum


def as_weights(M: Weights) -> tuple[Matrix, float]:
    """(weights as they came, their total): a float64 array, or a csr_array when they were sparse."""
    matrix: Matrix = scipy.sparse.csr_array(M) if scipy.sparse.issparse(M) else to_array(M, "the weights")
    values = matrix.data if scipy.sparse.issparse(matrix) else matrix
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise DataError(f"the weights must be a table of views × targets, not of shape {matrix.shape}")
    if not values.any():
        raise DataError("the weights are all zero: no view was ever seen with a target")
    as_counts(values, "the table of weights", values.ndim)
    total = float(values.sum(dtype=np.float64))
    if abs(total - 1) > SUM_TOLERANCE and values.dtype.kind == "f" and (values % 1).any():
        warnings.warn(f"the weights sum to {total:.6g}, not to 1: they were divided by that", stacklevel=3)
    return matrix if scipy.sparse.issparse(matrix) else matrix.astype(np.float64), total


def as_tokens(tok: Input, points: int) -> Ints:
    """One token id a target, (points,), every id of 0..l-1 in use."""
    ids = _whole_numbers(tok, "the tokens", points, "targets")
    if ids.min() < 0:
        raise DataError("token ids cannot be negative")
    if len(missing := np.setdiff1d(np.arange(ids.max()), ids)):
        raise DataError(f"token ids have a gap: {missing[0]} is not used, but {ids.max()} is")
    return ids


def as_labels(y: Input, points: int, name: str = "the labels") -> Ints:
    """Class indices 0..c-1, (points,), in the order of the labels' values; any whole numbers may be given."""
    return np.unique(_whole_numbers(y, name, points, "points"), return_inverse=True)[1].astype(np.int64)


def check_ratio(ratio: float) -> float:
    """r = c2/c1 of the bound, 0 or more."""
    if not (math.isfinite(ratio) and ratio >= 0):
        raise ConfigError(f"the ratio c2/c1 must be 0 or a positive number, not {ratio}")
    return ratio


def _whole_numbers(values: Input, name: str, points: int, of_what: str) -> Ints:
    array = to_array(values, name)
    floats = array.dtype.kind == "f"  # a CSV file gives 0.0, 1.0, …
    if array.dtype.kind not in "iuf" or (floats and not (np.isfinite(array).all() and (array % 1 == 0).all())):
        raise DataError(f"{name} must be whole numbers, not {array.dtype}")
    if array.shape != (points,):
        raise DataError(f"{name} must be one number for each of {points} {of_what}, not of shape {array.shape}")
    return array.astype(np.int64)
