"""Tokenizers read from disk: `tokenizer.json` and `tokenizer.safetensors`, both checked; never pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from clustermim.errors import TokenizerError
from clustermim.tokenizers.base import DESCRIPTION, FORMAT, TENSORS, Tokenizer, checksum


def load_saved(folder: str | Path, kinds: dict[str, type[Tokenizer]]) -> Tokenizer:
    """Read a tokenizer of one of these kinds; anything missing, truncated or edited is refused."""
    folder = Path(folder)
    record = _read_description(folder)
    blob = _read(folder / TENSORS)
    if hashlib.sha256(blob).hexdigest() != record["tensors_sha256"]:
        raise TokenizerError(f"{folder / TENSORS} is truncated or was changed after it was saved: fit or copy it anew")
    if record["kind"] not in kinds:
        raise TokenizerError(
            f"{folder / DESCRIPTION} is of unknown kind {record['kind']!r} (known: {', '.join(kinds)}): fit it anew"
        )
    try:
        tokenizer: Tokenizer = kinds[record["kind"]](**record["config"])
        return tokenizer.restore(record["fitted"], load(blob))
    except (TypeError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise TokenizerError(
            f"{folder} holds a {record['kind']} tokenizer that this version cannot read: {reason}"
        ) from error


def _read_description(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise TokenizerError(f"there is no tokenizer folder {folder}: make one with `clustermim fit`")
    path = folder / DESCRIPTION
    try:
        record = json.loads(_read(path))
    except ValueError as error:
        raise TokenizerError(f"{path} is truncated or not JSON ({error}): fit or copy the tokenizer anew") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise TokenizerError(f"{path} is not a tokenizer of format {FORMAT}, the one this version reads")
    if record.pop("sha256", None) != checksum(record):
        raise TokenizerError(f"{path} was changed after it was saved: fit or copy the tokenizer anew")
    return record


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise TokenizerError(f"{path.parent} holds no complete tokenizer: {path.name} is missing") from None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error
