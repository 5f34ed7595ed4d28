"""The files that people look at: refused before the work when they cannot be, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic

PICTURE = "reconstructions.png"  # what an encoder or a tokenizer makes of a few images, in its run folder


def check_out(path: Path, suffixes: Iterable[str], overwrite: bool) -> None:
    """Refuse a destination before the work begins."""
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"--out {path} must end in {', '.join(suffixes)}")
    if os.path.isdir(path):  # and not path.is_dir(), which may raise: an impossible name is refused when written
        raise RunError(f"{path} is a folder; choose another --out")
    if os.path.exists(path) and not overwrite:
        raise RunError(f"{path} exists; choose another --out, or replace it with --overwrite")


def write_out(path: Path, content: bytes | Callable[[BinaryIO], None], advice: str = "choose another --out") -> None:
    """Write a file, as `write_atomic` does."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; {advice}") from error
