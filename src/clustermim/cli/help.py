"""What `clustermim COMMAND --help` prints: kept in help.json, so that it appears without importing the command.

`python -m clustermim.cli.help` writes the file again; a test compares it with the commands.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from clustermim.stage_table import STAGES

FILE = Path(__file__).with_name("help.json")
COLUMNS = "100"


def read_help(name: str) -> str:
    """The explanation of a command."""
    texts: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return texts[name]


def make_help() -> dict[str, str]:
    """The explanations of all commands, from their functions."""
    from clustermim.parsing import make_parser

    os.environ["COLUMNS"] = COLUMNS
    stages = STAGES.items()
    return {n: make_parser(s.load(), s.positional, prog=f"clustermim {n}").format_help() for n, s in stages}


if __name__ == "__main__":
    FILE.write_text(json.dumps(make_help(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
