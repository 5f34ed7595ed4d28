"""What several tests of data need."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
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
