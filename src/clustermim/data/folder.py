"""`folder:PATH`: image files in a folder, flat or one sub-folder a class."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from clustermim.data.cache import fingerprint_of
from clustermim.data.encoded import EncodedSource, evenly_spaced, sample_bytes
from clustermim.data.images import SUFFIXES
from clustermim.data.masks import add_masks
from clustermim.data.spec import Spec
from clustermim.data.tables import SPLIT_NAMES
from clustermim.errors import DataError
from clustermim.files import user_path
from clustermim.progress import log_info

SMALL = 8_000_000  # bytes of a folder whose fingerprint is of all files, not of a sample


def open_folder(spec: Spec) -> EncodedSource:
    """The images below a folder, in the order of their names.

    Images in sub-folders, however deep, have the class of the top-most one; classes are numbered in the order of
    their names. Images directly in the folder have no labels. Hidden and other files do not count.
    """
    root = user_path(spec.path)
    if not root.is_dir():
        raise DataError(f"{spec.text}: {root} is {'not a folder' if root.exists() else 'not there'}")
    others: Counter[str] = Counter()
    try:
        files = sorted(_walk(root, (), frozenset(), others))
    except OSError as error:
        raise DataError(f"{spec.text}: {error.filename} cannot be read: {error.strerror}") from error
    if others:
        most = sorted(others, key=lambda suffix: (-others[suffix], suffix))[:5]
        kinds = ", ".join(f"{others[suffix]:,} {suffix or 'without a suffix'}" for suffix in most)
        _say_once(f"{root}: files of other kinds are not used ({kinds})")
    if not files:
        raise DataError(f"{spec.text}: no images in {root} ({', '.join(SUFFIXES)} are looked for)")
    classes = _classes(spec, root, [parts for parts, *_ in files])
    number = {name: index for index, name in enumerate(classes)}
    paths = [os.path.join(root, *parts) for parts, *_ in files]  # texts: they open faster than paths
    sample = evenly_spaced(len(paths))
    listing = "\0".join(f"{'/'.join(parts)}\0{size}" for parts, size, _ in files)
    hashed = range(len(files)) if sum(size for _, size, _ in files) <= SMALL else sample  # all takes long elsewhere
    contents = sample_bytes(lambda row: _read(paths[row]), hashed)
    source = EncodedSource(
        spec,
        len(paths),
        name=lambda row: _printable(paths[row]),
        fetcher=lambda rows: lambda row: _read(paths[row]),
        labels=np.array([number[parts[0]] for parts, *_ in files], np.int64) if classes else None,
        class_names=[_printable(name) for name in classes],
        fingerprint=fingerprint_of(os.fsencode(listing), *contents),
        sample=sample,
        dates=fingerprint_of(np.array([date for *_, date in files])),
    )
    if "masks" in spec.options:
        add_masks(source, spec, paths, [os.path.join(*parts) for parts, *_ in files], SMALL)
    return source


@cache
def _say_once(message: str) -> None:
    """Log a line, the first time in this process: a folder may be opened many times."""
    log_info(message)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _walk(
    folder: Path, parts: tuple[str, ...], above: frozenset[tuple[int, int]], others: Counter[str]
) -> list[tuple[tuple[str, ...], int, int]]:
    """Of every image below a folder its path in parts, its size and its date; links are followed once.

    Files of other kinds are counted.
    """
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link back to a folder that we are in
        return []
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                found += _walk(folder / entry.name, (*parts, entry.name), above | {here}, others)
            elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                file = entry.stat()
                found.append(((*parts, entry.name), file.st_size, file.st_mtime_ns))
            else:
                others[Path(entry.name).suffix.lower()] += 1
    return found


def _classes(spec: Spec, root: Path, files: list[tuple[str, ...]]) -> list[str]:
    """The names of the classes; none for a flat folder."""
    loose = [parts for parts in files if len(parts) == 1]
    classes = sorted({parts[0] for parts in files if len(parts) > 1})
    if loose and classes:
        raise DataError(
            f"{spec.text}: {len(loose)} images such as {_printable(loose[0][0])} lie beside the sub-folder "
            f"{_printable(classes[0])}; put them into a sub-folder, or name one folder of images only"
        )
    if classes and {name.lower() for name in classes} <= set(SPLIT_NAMES):
        raise DataError(
            f"{spec.text}: the sub-folders are named as splits ({', '.join(classes)}), not classes; "
            f"did you mean folder:{root / classes[0]}?"
        )
    return classes


def _printable(name: str) -> str:
    """A name that can be printed in one line, even if the file system holds bytes that are no text."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
