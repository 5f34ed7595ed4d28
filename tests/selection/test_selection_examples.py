"""The examples in the docstrings of `score`, `advise` and `iterate`."""

import doctest
from collections.abc import Callable
from typing import Any

import pytest

from clustermim.scores import score
from clustermim.selection import advise, iterate


@pytest.mark.parametrize("function", [score, advise, iterate])
def test_examples(function: Callable[..., Any]) -> None:
    (found,) = doctest.DocTestFinder().find(
        function, function.__name__, module=False, globs={function.__name__: function}
    )
    result = doctest.DocTestRunner().run(found)
    assert result.attempted > 0
    assert result.failed == 0
