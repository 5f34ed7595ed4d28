"""`clustermim doctor`: what this installation has, for a bug report or a first look."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from clustermim import __version__
from clustermim.data.cache import cache_folder
from clustermim.data.spec import OPENERS
from clustermim.provenance import git_commit
from clustermim.results import Result, Table


@dataclass(frozen=True)
class Diagnosis(Result):
    """Facts by their names."""

    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def table(self) -> Table:
        return Table("", ("what", "found"), [[name, str(value)] for name, value in self.facts.items()])


def doctor() -> Diagnosis:
    """Show versions, devices, threads, the cache folder and which extras are present."""
    cache = cache_folder()
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    facts = {
        "clustermim": __version__,
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])],
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cache": str(cache),
        "cache_writable": os.access(existing, os.W_OK),
        "data": [name for name in OPENERS if (cache / name).is_dir()],
    }
    return Diagnosis(facts | packages())


def packages() -> dict[str, str]:
    """Versions of all that the package and its extras can use; nothing is imported, since some fail on import."""
    found = {}
    for requirement in metadata.requires("clustermim") or []:
        name, extra = re.split(r"[^\w-]", requirement)[0], requirement.partition("extra == ")[2].strip("\"'")
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "missing"
        if extra != "dev":
            found[name] = f"{version} (extra {extra})" if extra else version
    return found
