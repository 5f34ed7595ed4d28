"""Text that may be damaged or a stranger's: read within bounds, as JSON or YAML, and checked against a shape.

What is wrong with a file is an OSError, with its text a ValueError of one line: whoever reads says which error it is.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Literal, NoReturn, Union, get_args, get_origin

import yaml

from clustermim.errors import ConfigError, UserError, did_you_mean

MOST_BYTES = 16_000_000  # of JSON: a gigabyte of Python objects at worst
MOST_YAML = 1_000_000  # bytes of YAML, which is read slowly
MOST_VALUES = 100_000  # of YAML, those that aliases repeat counted each time
MOST_DEPTH = 64  # of values inside values
MOST_DIGITS = 20  # of a whole number

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Whole(dict[Any, Any]):
    """A shape whose named keys must all be there."""


def open_regular(path: str | Path) -> BinaryIO:
    """A file to read; OSError of a pipe, a device or a folder, which need not have an end."""
    if stat.S_ISREG(os.stat(path).st_mode):
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it may have been exchanged
            return file
        file.close()
    raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", str(path))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # which a pipe would make wait for a writer


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """What a regular file holds; OSError where it has more than `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and {most:,} are the most that are read", str(path))
        return file.read(-1 if most is None else most)


def read_json(path: str | Path) -> Any:
    """The values of a JSON file."""
    return parse_json(read_bytes(path, MOST_BYTES))


def read_yaml(path: str | Path) -> Any:
    """The values of a YAML file."""
    return parse_yaml(read_bytes(path, MOST_YAML).decode("utf-8"))


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """The values of a JSON text; `finite` refuses NaN and infinite numbers."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has {len(text):,} characters, and {MOST_BYTES:,} are the most that are read")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    _check_plain(value, finite)
    return value


def parse_yaml(text: str) -> Any:
    """The values of a YAML text: those that JSON has too."""
    try:
        _check_nodes(yaml.parse(text, YAML_LOADER))
        value = yaml.load(text, YAML_LOADER)
    except Exception as error:  # whatever the library raises, also on a date or number that cannot be
        raise ValueError(" ".join(str(error).split()) or "it is no YAML") from error
    _check_plain(value, finite=False)
    return value


def check_shape(value: Any, shape: Any, where: str, error: type[UserError] = ConfigError) -> None:
    """Refuse a value that has other keys than a shape, or values of other kinds; a key may have none, unless `Whole`.

    In a shape `str` stands for any key, a list for a list of such items, and what is neither is as for `fits`.
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise error(f"{where}: expected keys with values, not {value!r:.60}")
        for key in shape if isinstance(shape, Whole) else ():
            if key is not str and value.get(key) is None:
                raise error(f"{where} is damaged or of another version: it has no {key}")
        for key, item in value.items():
            if key not in shape and str not in shape:
                raise error(f"{where} has a key {key!r:.60}{did_you_mean(key, shape)}")
            if item is not None or (key not in shape and str in shape):
                check_shape(item, shape.get(key, shape.get(str)), f"{where}, {key:.60}", error)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise error(f"{where}: expected a list of values, not {value!r:.60}")
        for item in value:
            check_shape(item, shape[0], where, error)
    elif not fits(value, shape):
        raise error(f"{where}: {value!r:.60} is not of the kind {_kind(shape)}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, in a range, or as an annotation says; a bool is no number."""
    origin = get_origin(kind)
    if kind in (object, Any):
        return True
    if isinstance(kind, range):
        return type(value) is int and value in kind
    if kind in (int, float):
        return type(value) in (int, kind)
    if origin in (Union, UnionType) or isinstance(kind, tuple):
        return any(fits(value, part) for part in (kind if isinstance(kind, tuple) else get_args(kind)))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    if origin is list:
        return isinstance(value, list) and all(fits(item, get_args(kind)[0]) for item in value)
    return isinstance(value, origin or kind)


def _kind(shape: Any) -> str:
    if isinstance(shape, range):
        return f"{shape.start} … {shape.stop - 1}"
    return getattr(shape, "__name__", None) or str(shape)


def _check_nodes(events: Iterable[Any]) -> None:
    """Refuse YAML that nests too deeply, or that aliases make too large, before anything is made of it."""
    sizes: dict[str, int] = {}
    nodes: list[tuple[str | None, int]] = [(None, 0)]  # those that are not complete: anchor, and values inside so far
    for event in events:
        size = 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} stands for nothing, or is inside of what it stands for")
            size = sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            nodes.append((event.anchor, 1))
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionEndEvent):
            anchor, size = nodes.pop()
            if anchor is not None:
                sizes[anchor] = size
        nodes[-1] = nodes[-1][0], nodes[-1][1] + size
        if len(nodes) > MOST_DEPTH:
            raise ValueError("it nests too deeply")
        if nodes[-1][1] > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")


def _check_plain(value: Any, finite: bool) -> None:
    """Refuse what JSON does not have, what no text file of ours needs, and values that nest too deeply."""
    level = [value]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                _check_keys(item)
                below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                if "\0" in item or (not item.isascii() and any("\ud800" <= c <= "\udfff" for c in item)):
                    _refuse(item, "has characters that no text has")
            elif isinstance(item, float):
                if finite and not math.isfinite(item):
                    _refuse(item, "is no number")
            elif isinstance(item, int):
                if abs(item) >= 10**MOST_DIGITS:
                    raise ValueError(f"a number has more than {MOST_DIGITS} digits")
            elif item is not None:
                _refuse(item, f"is a {type(item).__name__}: put it in quotes")
        if not (level := below):
            return
    raise ValueError("it nests too deeply")


def _check_keys(item: dict[Any, Any]) -> None:
    for key in item:
        if not isinstance(key, str):
            _refuse(key, "is no text, and keys are: put it in quotes")


def _refuse(item: Any, why: str) -> NoReturn:
    raise ValueError(f"{item!r:.60} {why}")
