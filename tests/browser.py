"""A real browser for the tests of the report. `python tests/browser.py` provides one before the tests begin.

In this order: a Chromium or Chrome that is installed, Debian's package when run as root, playwright's own download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 900  # seconds for an installation, before the next way is tried


def find_browser() -> str | None:
    """The program of an installed browser, or of playwright's own."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return own_browser()


def own_browser() -> str | None:
    """Where playwright keeps its own Chromium, if it was downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def ways() -> list[list[list[str]]]:
    """Commands that install a browser, for each way that is open to this user."""
    found = []
    if shutil.which("apt-get") is not None and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        found.append([["apt-get", "update"], install])
    found.append([[sys.executable, "-m", "playwright", "install", "chromium"]])
    return found


def provide() -> str | None:
    """The program of a browser, installed if need be."""
    path = find_browser()
    for commands in ways():
        if path is None:
            install(commands)
            path = find_browser()
    return path


def install(commands: list[list[str]]) -> None:
    """Run some commands, each whether or not the one before failed: old package lists may do as well as new ones."""
    for command in commands:
        print(" ".join(command), flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        try:
            subprocess.run(command, env=environment, timeout=PATIENCE, stdout=subprocess.DEVNULL, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)


def missing() -> str:
    """Why there is no browser, in one line."""
    return f"there is no browser: none of {', '.join(NAMES)} is installed, and neither apt-get nor playwright gave one"


def required() -> bool:
    """Whether tests must not do without: in continuous integration."""
    return os.environ.get("CI", "").lower() == "true"


def main() -> int:
    path = provide()
    print(f"browser: {path}" if path else f"warning: {missing()}")
    return 1 if path is None and required() else 0


if __name__ == "__main__":
    sys.exit(main())
