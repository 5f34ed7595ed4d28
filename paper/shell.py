"""What the three commands share: how they print, and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, RenderableType

from clustermim.errors import UserError
from clustermim.runs import to_json

LOG_WIDTH = 130  # columns when the output is not a terminal


def show(*items: RenderableType) -> None:
    """Print results on stdout, wide enough for tables when it is not a terminal; text is printed as it is."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=LOG_WIDTH)
    for item in items:
        console.print(item)


def print_json(value: Any) -> None:
    """Strict JSON on stdout: an infinite end of an interval becomes null."""
    print(to_json(value, indent=2))


def run(command: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """Run a command with the words of the command line; what the user can mend is one line and exit code 2."""
    try:
        command(sys.argv[1:] if arguments is None else arguments)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
