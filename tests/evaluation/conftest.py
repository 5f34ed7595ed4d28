"""Encoders and labelled images small enough to train many times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim.cli import main
from clustermim.models import Encoder, ViT


@pytest.fixture
def command() -> Callable[..., int]:
    """A function that runs a command line; a run that stops early counts as its exit code."""

    def call(*words: str | Path) -> int:
        try:
            return main([str(word) for word in words])
        except SystemExit as stopped:
            return int(stopped.code or 0)

    return call


@pytest.fixture
def refuse(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command line which must fail in one line, and gives that line."""

    def call(*words: str | Path) -> str:
        capsys.readouterr()
        assert command(*words) == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        return errors[0]

    return call


@pytest.fixture
def save_micro(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes an untrained encoder as a run folder has it."""

    def save(name: str = "pre", channels: int = 3, size: tuple[int, int] = (8, 8), **options: Any) -> Path:
        torch.manual_seed(5)
        folder = tmp_path / name
        vit = ViT.of_size("micro", size, 4, channels, **options)
        Encoder(vit, "micro", [0.5] * channels, [0.25] * channels).save(folder)
        return folder

    return save


@pytest.fixture
def save_bright(tmp_path: Path) -> Callable[..., str]:
    """A function that writes noisy images whose brightness tells their class, and gives their spec."""

    def save(
        name: str = "bright", count: int = 64, channels: int = 3, size: tuple[int, int] = (8, 8), classes: int = 2
    ) -> str:
        labels = np.arange(count) % classes
        noise = np.random.default_rng(count).integers(0, 60, (count, channels, *size))
        pixels = (noise + (labels * (180 // (classes - 1)))[:, None, None, None]).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=labels)
        return f"npz:{tmp_path / name}.npz?layout=nchw"

    return save
