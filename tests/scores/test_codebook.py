"""Codebook statistics against scikit-learn and hand-made counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.metrics import normalized_mutual_info_score

from clustermim import scores as metrics
from clustermim.errors import DataError

shapes = st.tuples(st.integers(1, 5), st.integers(1, 5))
tables = shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, 6)))


@given(tables.filter(lambda table: table.any()))
def test_nmi_is_that_of_scikit_learn(table: NDArray[np.int64]) -> None:
    tokens, classes = np.nonzero(table)
    repeats = table[tokens, classes]
    expected = normalized_mutual_info_score(np.repeat(classes, repeats), np.repeat(tokens, repeats))
    assert metrics.nmi(table) == pytest.approx(expected, abs=1e-12)


@given(arrays(np.int64, st.integers(1, 8), elements=st.integers(0, 9)).filter(lambda counts: counts.any()))
def test_perplexity_lies_between_one_and_the_used_tokens(counts: NDArray[np.int64]) -> None:
    assert 1 - 1e-12 <= metrics.perplexity(counts) <= np.count_nonzero(counts) + 1e-9


def test_even_use() -> None:
    assert metrics.perplexity([2, 2, 0, 2, 2]) == pytest.approx(4)


def test_refusals() -> None:
    for counts, words in (([0, 0], "zeros"), ([1, -1], "negative"), ([[1, 2]], "1 non-empty")):
        with pytest.raises(DataError, match=words):
            metrics.perplexity(counts)
