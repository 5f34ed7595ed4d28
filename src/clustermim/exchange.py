"""A folder takes the place of another; a kill at any moment leaves one of the two, whole.

The new folder is made beside the old one, under a hidden name, and both change names in one system call where the
kernel and the file system have that. Elsewhere they are renamed one after the other, and `recover` puts the old one
back if a kill came between.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from clustermim.files import sync_folder

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux
UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)  # to the kernel, or to the file system


def beside(folder: Path, what: str) -> Path:
    """A new hidden place in the same folder; `clean` removes what a kill leaves there."""
    return folder.with_name(f".{folder.name}.{what}-{secrets.token_hex(4)}")


def put_in_place(new: Path, folder: Path) -> None:
    """Give a complete folder its name; an older one is deleted last. Both are on one file system."""
    _sync_files(new)
    if not folder.exists():
        new.rename(folder)
        old = None
    elif exchange(new, folder):
        old = new
    else:
        old = beside(folder, "old")
        folder.rename(old)
        try:
            new.rename(folder)
        except BaseException:  # also when interrupted in this moment
            old.rename(folder)
            raise
    sync_folder(folder.absolute().parent)
    if old is not None:
        remove(old)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change names in one system call; False where there is none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if not call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE)):
        return True
    if (number := ctypes.get_errno()) in UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), str(other))


def recover(folder: Path) -> None:
    """Put back a folder that a kill between two renames left under its other name; for whoever holds its lock."""
    kept = max(_left(folder, "old"), key=lambda path: path.stat().st_mtime, default=None)
    if kept is not None and not folder.exists():
        kept.rename(folder)


def clean(folder: Path) -> None:
    """Remove what kills left beside a folder, after `recover`; for whoever holds its lock."""
    for path in (*_left(folder, "partial"), *_left(folder, "old")):
        remove(path)


def remove(path: Path) -> None:
    """Delete a folder, or a link to one, as far as possible."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _left(folder: Path, what: str) -> list[Path]:
    return list(folder.absolute().parent.glob(f".{glob.escape(folder.absolute().name)}.{what}-????????"))


def _sync_files(folder: Path) -> None:
    """Wait until the files of a folder are on the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError), open(os.path.join(place, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(place))
