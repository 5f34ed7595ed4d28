"""A command, its images and its shortest training."""

from __future__ import annotations

from pathlib import Path

from clustermim.cli import main

DATA = "textures:?images=96&grid=4&patch=4&channels={channels}"
SHORT = ("--batch-size", "32", "--epochs", "2", "--device", "cpu")


def run(*words: str | Path) -> int:
    """The exit code, also of a run that stops early."""
    try:
        return main([str(word) for word in words])
    except SystemExit as stopped:
        return int(stopped.code or 0)
