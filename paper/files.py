"""Weights, labels and tokenizers from files: CSV, NPY or JSON. Never pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from clustermim.count_tables import to_array
from clustermim.errors import DataError

SUFFIXES = (".csv", ".txt", ".npy", ".json")


def read_numbers(path: str, what: str) -> Any:
    """What a file holds: an array, or the dictionary of a JSON file that is one."""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise DataError(f"{what} must be a file ending in {', '.join(SUFFIXES)}, not {path}")
    if not file.is_file():
        raise DataError(f"{path} was not found")
    try:
        if file.suffix == ".npy":
            return np.load(file, allow_pickle=False)
        if file.suffix == ".json":
            content = json.loads(file.read_text(encoding="utf-8"))
            return content if isinstance(content, dict) else to_array(content, what)
        return _read_text(file)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _read_text(file: Path) -> Any:
    """Numbers separated by commas or spaces, one row a line, `#` starting a comment."""
    lines = [line.split("#")[0].replace(",", " ") for line in file.read_text(encoding="utf-8").splitlines()]
    if not any(line.strip() for line in lines):
        raise ValueError("it holds no numbers")
    return np.loadtxt(lines, dtype=np.float64, ndmin=2)


def read_weights(path: str) -> tuple[Any, list[int] | None, list[int] | None]:
    """(weights, y1, y2) of a file; the labels come only with a JSON object of these names."""
    content = read_numbers(path, "the weights")
    if not isinstance(content, dict):
        return content, None, None
    if "weights" not in content:
        raise DataError(f"{path} has no key `weights`")
    return to_array(content["weights"], "the weights"), content.get("y1"), content.get("y2")


def read_tokens(path: str) -> Any:
    """One token id a point, from a list, a row or a column."""
    content = read_numbers(path, "the tokenizer")
    if isinstance(content, dict):
        raise DataError(f"{path} must hold a list of token ids, one a point")
    return content.reshape(-1) if content.ndim == 2 and 1 in content.shape else content
