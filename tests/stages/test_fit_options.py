"""Options that stages share: a stage has them with their defaults and docs, and its own word counts most."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from clustermim.stages.fit.options import options_of
from clustermim.stages.fit.vq import fit_peco, fit_vqgan

SEEN: list[dict[str, Any]] = []


def before(data: str, k: int = 3) -> None:
    """Comes first.

    Args:
        data: where.
        k: how many.
    """


def after(epochs: int = 7) -> None:
    """Comes last.

    Args:
        epochs: how long.
    """


@options_of(before, after=after)
def stage(width: int = 5, **shared: Any) -> None:
    """Do it.

    It is done.

    Args:
        k: how many at least.
        width: how wide.
    """
    SEEN.append({"width": width, **shared})


def test_signature_and_docs_are_those_of_all_groups() -> None:
    assert str(inspect.signature(stage)) == "(data: str, k: int = 3, width: int = 5, epochs: int = 7) -> None"
    assert stage.__name__ == "stage"
    lines = [line.strip() for line in (stage.__doc__ or "").splitlines() if line.strip()]
    assert lines[:3] == ["Do it.", "It is done.", "Args:"]
    assert lines[3:] == ["data: where.", "k: how many at least.", "width: how wide.", "epochs: how long."]


def test_a_call_fills_in_the_defaults() -> None:
    stage("here", width=2)
    assert SEEN.pop() == {"data": "here", "k": 3, "width": 2, "epochs": 7}
    with pytest.raises(TypeError, match="depth"):
        stage("here", depth=1)


def test_every_option_of_a_stage_is_explained() -> None:
    for function in (fit_vqgan, fit_peco):
        doc = function.__doc__ or ""
        assert all(f"        {name}: " in doc for name in inspect.signature(function).parameters)
