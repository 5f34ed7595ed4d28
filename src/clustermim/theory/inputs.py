"""What users hand over, checked once: weights, tokens, labels, probabilities.

The weights of a mask graph may have any scale: they are divided by their total, silently when they are whole numbers
(counts), with a warning when they are not. A class prior or a label posterior that does not sum to one is refused.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import scipy  # which imports its parts, sparse among them, when they are used

from clustermim.count_tables import Floats, Input, Ints, to_array
from clustermim.errors import ConfigError, DataError

Weights = Any  # (N1, N2) array, nested lists, or any scipy.sparse matrix
Matrix = Any  # (N1, l) float64: numpy array, or csr_array when the weights were sparse

SUM_TOLERANCE = 1e-6  # how far from one a table of probabilities may sum


def as_weights(M: Weights) -> tuple[Matrix, float]:
    """(weights as they came, their total): a dense float64 array, or a csr_array when they were sparse.

    They are not divided by the total here, so that a large sparse matrix is not copied.
    """
    matrix: Matrix = scipy.sparse.csr_array(M) if scipy.sparse.issparse(M) else to_array(M, "the weights")
    values = matrix.data if scipy.sparse.issparse(matrix) else matrix
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise DataError(f"the weights must be a table of views × targets, not of shape {matrix.shape}")
    if not values.any():
        raise DataError("the weights are all zero: no view was ever seen with a target")
    if not np.isfinite(values).all():
        raise DataError("the weights hold NaN or infinity")
    if values.min() < 0:
        raise DataError("the weights hold negative entries: a joint probability cannot be below 0")
    total = float(values.sum(dtype=np.float64))
    if abs(total - 1) > SUM_TOLERANCE and values.dtype.kind == "f" and (values % 1).any():
        warnings.warn(f"the weights sum to {total:.6g}, not to 1: they were divided by that", stacklevel=3)
    return matrix if scipy.sparse.issparse(matrix) else matrix.astype(np.float64), total


def as_tokens(tok: Input, points: int) -> Ints:
    """One token id a target, (points,), every id of 0..l-1 in use."""
    ids = _whole_numbers(tok, "the tokens", points, "targets")
    if ids.min() < 0:
        raise DataError("token ids cannot be negative")
    used = np.unique(ids)
    if len(used) <= used[-1]:
        missing = int(np.setdiff1d(np.arange(used[-1]), used)[0])
        raise DataError(f"token ids have a gap: {missing} is not used, but {used[-1]} is")
    return ids


def as_labels(y: Input, points: int, name: str = "the labels") -> Ints:
    """Class indices 0..c-1, (points,), in the order of the labels' values; any whole numbers may be given."""
    return np.unique(_whole_numbers(y, name, points, "points"), return_inverse=True)[1].astype(np.int64)


def as_prior(pi: Input) -> Floats:
    """Class shares, (c,), all positive and summing to one."""
    shares = to_array(pi, "the class prior").astype(np.float64)
    if shares.ndim != 1 or shares.size == 0:
        raise DataError(f"the class prior must be a list of shares, not of shape {shares.shape}")
    if not (shares > 0).all():
        raise DataError("every class needs a positive share")
    return _check_sums(shares, "the class prior")


def as_posterior(posterior: Input, views: int) -> Floats:
    """P(class | view), (views, c), rows summing to one."""
    table = to_array(posterior, "the posterior").astype(np.float64)
    if table.ndim != 2 or len(table) != views:
        raise DataError(f"the posterior must have one row for each of {views} views, not shape {table.shape}")
    if not (table >= 0).all():
        raise DataError("the posterior holds negative or non-finite entries")
    return _check_sums(table, "a row of the posterior")


def check_ratio(ratio: float) -> float:
    """r = c2/c1 of the bound, 0 or more."""
    if not (math.isfinite(ratio) and ratio >= 0):
        raise ConfigError(f"the ratio c2/c1 must be 0 or a positive number, not {ratio}")
    return ratio


def _whole_numbers(values: Input, name: str, points: int, of_what: str) -> Ints:
    array = to_array(values, name)
    if array.dtype.kind == "f" and np.isfinite(array).all() and not (array % 1).any():
        array = array.astype(np.int64)  # a CSV file gives 0.0, 1.0, …
    if array.dtype.kind not in "iu":
        raise DataError(f"{name} must be whole numbers, not {array.dtype}")
    if array.shape != (points,):
        raise DataError(f"{name} must be one number for each of {points} {of_what}, not of shape {array.shape}")
    return array.astype(np.int64)


def _check_sums(table: Floats, name: str) -> Floats:
    off = np.atleast_1d(table.sum(axis=-1)) - 1
    worst = float(off[np.argmax(np.abs(off))])
    if abs(worst) > SUM_TOLERANCE:
        raise DataError(f"{name} sums to {1 + worst:.6g}, not to 1: probabilities are not rescaled here")
    return table
