"""Files that are there whole or not at all, and folders that one process at a time writes."""

from __future__ import annotations

import glob
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from clustermim.errors import BusyError, RunError, UserError, WriteError

ABANDONED = 3600.0  # seconds


def user_path(text: str) -> Path:
    """A path, with ~ for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UserError(f"{text}: there is no user {user[1:]}; your own home folder is ~/") from None


def write_atomic(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file under another name and rename it; `content` is bytes, or a function that writes them.

    A failure leaves no new file behind and an older one as it was.
    """
    with writing(path):
        _write_atomic(path, content)


def _write_atomic(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with part.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
        _remove_abandoned(path)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system knows how."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Delete what killed processes left of earlier attempts to write a file: nobody has written to it for an hour."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.????????.partial"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > ABANDONED:
                part.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say which file cannot be written where this is so."""
    try:
        yield
    except OSError as error:
        raise WriteError(path, error.strerror or str(error)) from error


@contextmanager
def wrap_os_errors(folder: Path) -> Iterator[None]:
    """Say that a folder cannot be written where this is so."""
    try:
        yield
    except Timeout as error:
        raise BusyError(f"another process is writing {folder}; wait for it, or choose another --out") from error
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; choose another --out") from error


@contextmanager
def locked(folder: Path, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Keep other processes from writing a folder, which need not exist, while the block lasts.

    The lock is a file beside the folder. It ends with its process, however that ends. Where another process has it,
    this is a BusyError, or `waits` is called, to say so, and the lock is waited for.
    """
    place = folder.absolute()  # "." has no name
    lock = FileLock(place.with_name(f".{place.name}.lock"), timeout=0)
    with wrap_os_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            if waits is None:
                raise
            waits()
            lock.acquire(timeout=-1)
    try:
        yield
    finally:
        with suppress(OSError):  # some systems do not delete an open file
            Path(lock.lock_file).unlink()
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether another process is writing a folder."""
    try:
        with locked(folder):
            return False
    except BusyError:
        return True
