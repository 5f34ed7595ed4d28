"""The examples in the docstrings."""

import doctest
import importlib

import pytest

ROOMS = ("clustermim.theory.theorem", "clustermim.theory.toy", "paper.closed", "paper.exact", "paper.partitions")


@pytest.mark.parametrize("name", ROOMS)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
