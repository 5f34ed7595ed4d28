"""Models of the Hugging Face hub, from this machine's cache or downloaded: the files that are named, and no others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clustermim.errors import MissingExtraError, UserError, format_error

PATIENCE = 5.0  # seconds to wait for the hub's first answer

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def has_files(folder: Path, patterns: Sequence[str]) -> bool:
    """Whether a folder has a file of each pattern."""
    return all(any(folder.glob(pattern)) for pattern in patterns)


def fetch_model(
    spec: str, name: str, needed: Sequence[str], wanted: Sequence[str], error: type[UserError], bring: str
) -> Path:
    """The folder with the files of a model of the hub.

    Args:
        spec: what the user wrote, to begin an error with.
        name: NAME or OWNER/NAME.
        needed: patterns of files that it must have.
        wanted: of those that are fetched too, but where there is no hub a cache without them will do.
        error: what to raise.
        bring: what to do where there is no hub, to end an error with.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(spec, "hf") from None
    if not HUB_NAME.fullmatch(name):
        raise error(f"{spec}: there is no such folder, nor is it a name of the hub (OWNER/NAME); {bring}")
    files, cached = [*needed, *wanted], None
    try:
        cached = Path(huggingface_hub.snapshot_download(name, allow_patterns=files, local_files_only=True))
        if has_files(cached, files):
            return cached
    except Exception:  # not in the cache, whatever the library calls that
        pass
    try:
        # One short question first: a download asks again and again for half a minute where there is no network.
        huggingface_hub.HfApi().model_info(name, timeout=PATIENCE)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=files))
    except Exception as problem:  # network errors of several libraries, and those of the hub
        if cached is not None and has_files(cached, needed):
            return cached
        raise error(
            f"{spec} is neither a folder nor to be had from the hub ({format_error(problem)}): check the name and the "
            f"network, or {bring}"
        ) from problem
