"""The examples in the docstrings."""

import doctest
import importlib

import pytest

MODULES = ("tcas", "codebook", "spectral", "bags", "collect")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"clustermim.scores.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
