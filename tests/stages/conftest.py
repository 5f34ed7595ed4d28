"""Tokens to pretrain on, and commands that must fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pretrain_toys import DATA, run


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    words = (
        "fit",
        "kmeans",
        "--data",
        DATA.format(channels=3),
        "--k",
        "12",
        "--patch-size",
        "4",
        "--out",
        tmp_path / "km",
    )
    assert run(*words) == 0
    return tmp_path / "km"


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail in one line."""

    def command(*words: str | Path) -> str:
        capsys.readouterr()
        assert run(*words) == 2
        errors = capsys.readouterr().err.splitlines()
        assert [line for line in errors if line.startswith("error: ")] == errors[-1:]
        assert not any("Traceback" in line for line in errors)
        return errors[-1]

    return command
