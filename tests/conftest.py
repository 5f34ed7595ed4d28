"""Settings of all tests, and what several of them need."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from threadpoolctl import threadpool_limits

# A busy machine must not fail a test, and a failure must come back on the next run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Two test processes share the machine; what they compute is too small for threads."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder: no test reads or writes the user's own."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CLUSTERMIM_HOME", str(folder))
    return folder


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """A function from an array (H, W[, C]) or a Pillow image to the bytes of an image file."""

    def encode_image(image: Any, kind: str = "PNG", **options: Any) -> bytes:
        file = io.BytesIO()
        picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        picture.save(file, kind, **options)
        return file.getvalue()

    return encode_image


@pytest.fixture
def noise() -> Callable[..., Any]:
    """A function that gives random uint8 pixels of a shape."""

    def draw(*shape: int, seed: int = 0) -> Any:
        return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)

    return draw
