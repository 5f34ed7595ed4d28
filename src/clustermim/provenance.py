"""Where numbers come from: versions of what computed them, and the commit of the code."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from clustermim import __version__


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    named = {name: metadata.version(name) for name in ("torch", "numpy", "scikit-learn")}
    return {"clustermim": __version__, "python": platform.python_version(), **named}


def git_commit() -> str | None:
    """The commit of the code at work, with `+` when it has uncommitted changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)  # not merely inside somebody's repository
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
