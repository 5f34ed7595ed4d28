"""Models of the Hugging Face hub: fetched from this machine's cache or the network, and uploaded, named files only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from clustermim.errors import ConfigError, MissingExtraError, RunError, UserError, format_error

PATIENCE = 5.0  # seconds to wait for the hub's first answer
MOST_BYTES = 20_000_000_000  # of a model that is downloaded

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
    huggingface_hub = _library(spec)
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
        info = huggingface_hub.HfApi().model_info(name, timeout=PATIENCE, files_metadata=True)
        if (size := _size(info, files)) > MOST_BYTES:
            raise ValueError(f"its files have {size:,} bytes, and {MOST_BYTES:,} are the most that are downloaded")
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=files))
    except Exception as problem:  # network errors of several libraries, and those of the hub
        if cached is not None and has_files(cached, needed):
            return cached
        raise error(
            f"{spec} is neither a folder nor to be had from the hub ({format_error(problem)}): check the name and the "
            f"network, or {bring}"
        ) from problem


def check_pushable(name: str) -> None:
    """Refuse what no repository can be called, and a machine without the library, before anything is done."""
    _library("--push")
    if not HUB_NAME.fullmatch(name):
        raise ConfigError(f"--push {name} is no name of the hub; write OWNER/NAME")


def push_folder(folder: Path, name: str, public: bool, replaced: Sequence[str]) -> None:
    """Upload the files of a folder as a model of the hub, in one commit.

    Args:
        folder: what to upload.
        name: NAME or OWNER/NAME; it is made if need be.
        public: of one that is made, whether everybody sees it.
        replaced: files that are deleted there where the folder has none of the name.
    """
    api = _library("--push").HfApi()
    try:
        repository = api.create_repo(name, private=not public, exist_ok=True).repo_id
        message = "An encoder written by clustermim export"
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=list(replaced)
        )
    except Exception as problem:  # network errors of several libraries, and those of the hub
        raise RunError(
            f"{name} was not pushed ({format_error(problem)}): check the name, the network and your login "
            f"(hf auth login), then do it again with --overwrite; {folder} is complete"
        ) from problem


def _library(what: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(what, "hf") from None
    return huggingface_hub


def _size(info: Any, patterns: Sequence[str]) -> int:
    """Bytes of those files of a model that are of one of the patterns, as the hub says."""
    files = getattr(info, "siblings", None) or ()
    return sum(file.size or 0 for file in files if any(fnmatch(file.rfilename, pattern) for pattern in patterns))
