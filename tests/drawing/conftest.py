"""What several tests of pictures need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustermim.data import open_source
from clustermim.tokenizers import Tokenizer


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str, Tokenizer], str]:
    """A function that fits a tokenizer on a source and gives the folder it is saved in."""

    def fit(data: str, tokenizer: Tokenizer) -> str:
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        tokenizer.fit(open_source(data)).save(folder)
        return str(folder)

    return fit


@pytest.fixture
def npz(tmp_path: Path, noise: Callable[..., Any]) -> Callable[..., str]:
    """A function that saves random images of a shape (n, C, H, W), and gives the text that opens them."""

    def write(*shape: int, name: str = "images", **arrays: Any) -> str:
        np.savez(tmp_path / f"{name}.npz", images=noise(*shape), **arrays)
        return f"npz:{tmp_path}/{name}.npz?layout=nchw"

    return write
