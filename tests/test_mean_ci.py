"""Intervals of differences."""

from __future__ import annotations

import pytest

from clustermim.evaluation.labels import wilson
from clustermim.mean_ci import newcombe


def test_the_difference_of_two_shares_is_that_of_newcombe() -> None:
    # Newcombe (1998), table II, case (a): 56 of 70 against 48 of 80, method 10
    low, high = newcombe(56 / 70, wilson(56, 70), 48 / 80, wilson(48, 80))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)
    low, high = newcombe(80, tuple(100 * end for end in wilson(56, 70)), 60, tuple(100 * end for end in wilson(48, 80)))
    assert (low, high) == pytest.approx((5.24, 33.39), abs=0.01)  # percent as well
