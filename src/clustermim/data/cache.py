"""Where downloaded and computed data is kept, how it is written, and the hash that names it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
from numpy.typing import NDArray

from clustermim.errors import DataError, WriteError
from clustermim.files import user_path, write_atomic

_ROWS_BYTES = 1 << 24  # a memory-mapped array is hashed in pieces of about this size


def cache_folder() -> Path:
    """The folder for downloads and computed statistics: $CLUSTERMIM_HOME, or the user's cache folder."""
    home = os.environ.get("CLUSTERMIM_HOME")
    return user_path(home) if home else Path(platformdirs.user_cache_dir("clustermim"))


def write_cached(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file of the cache, whole or not at all."""
    try:
        write_atomic(path, content)
    except WriteError as error:
        raise DataError(f"cannot write {path}: {error.reason}; set CLUSTERMIM_HOME to a writable folder") from error


def fingerprint_of(*parts: str | bytes | NDArray[Any]) -> str:
    """Sixteen hex digits of the sha256 of all parts, in order; an array counts with its type and shape."""
    digest = hashlib.sha256()
    for part in parts:
        rows = np.atleast_1d(part) if isinstance(part, np.ndarray) else np.empty(0)
        if isinstance(part, np.ndarray):
            part = f"{part.dtype.newbyteorder('<').str}{part.shape}"
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)  # the length first: ("ab", "c") and ("a", "bc") differ
        step = max(1, _ROWS_BYTES // max(1, rows[:1].nbytes))
        for start in range(0, len(rows), step):
            piece = rows[start : start + step]
            digest.update(np.ascontiguousarray(piece, dtype=piece.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()[:16]
