"""Images of any shape for the tests of reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def npz(tmp_path: Path, noise: Callable[..., Any]) -> Callable[..., str]:
    """A function that saves random images of a shape (n, C, H, W), and gives the text that opens them."""

    def write(*shape: int, name: str = "images", **arrays: Any) -> str:
        np.savez(tmp_path / f"{name}.npz", images=noise(*shape), **arrays)
        return f"npz:{tmp_path}/{name}.npz?layout=nchw"

    return write
