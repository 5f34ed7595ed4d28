"""What several tests of pictures need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.data import open_source
from clustermim.tokenizers import Tokenizer, save_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Batches this small are slower with threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str, Tokenizer], str]:
    """A function that fits a tokenizer on a source and gives the folder it is saved in."""

    def fit(data: str, tokenizer: Tokenizer) -> str:
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        save_tokenizer(tokenizer.fit(open_source(data)), folder)
        return str(folder)

    return fit


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., str]:
    """A function that saves random images of a shape (n, C, H, W), and gives the text that opens them."""

    def write(*shape: int, **arrays: Any) -> str:
        images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        np.savez(tmp_path / "images.npz", images=images, **arrays)
        return f"npz:{tmp_path}/images.npz?layout=nchw"

    return write
