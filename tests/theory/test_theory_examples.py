"""The examples in the docstrings."""

import doctest
import importlib

import pytest

ROOMS = ("theory.theorem", "theory.toy")


@pytest.mark.parametrize("name", [*(f"clustermim.{room}" for room in ROOMS), "paper.exact"])
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
