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
    git = ["git", "-C", str(Path(__file__).parent)]
    own = ["ls-files", "--error-unmatch", Path(__file__).name]  # not merely inside somebody's repository
    commit = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        for words in (own, commit):
            found = subprocess.run([*git, *words], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return found.strip()
