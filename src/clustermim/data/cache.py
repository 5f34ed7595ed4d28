"""Where downloaded and computed data is kept, how it is written, and the hash that names it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
from numpy.typing import NDArray

from clustermim.errors import DataError, WriteError
from clustermim.files import user_path, write_atomic
from clustermim.progress import log_info
from clustermim.reading import read_json

verifying = ContextVar("verifying", default=False)  # whether nothing is taken from the records of the cache
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


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file of the cache with its checksum; one that cannot be written costs time only."""
    with contextlib.suppress(DataError):
        write_cached(path, json.dumps({**record, "sha256": _checksum(record)}).encode())


@contextlib.contextmanager
def verify_files() -> Iterator[None]:
    """While the block lasts, files of images are read and hashed whole when they are opened, whatever their dates."""
    token = verifying.set(True)
    try:
        yield
    finally:
        verifying.reset(token)


def read_record(path: Path) -> dict[str, Any] | None:
    """What `write_record` wrote; None where it is not there, damaged (which is said), or of an earlier version."""
    if verifying.get():
        return None
    try:
        record = read_json(path)
        known = record.pop("sha256", None)
        if known == _checksum(record):
            return dict(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError):
        known = "damaged"
    if known is not None:
        log_info(f"{path} is damaged and is made again")
    return None


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


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
