"""The stage that runs a method from one file: `clustermim run --config configs/mae.yaml`."""

from __future__ import annotations

from typing import Any

from clustermim.studies.description import make_study
from clustermim.studies.stage import run_study


def run_preset(
    stages: list[dict[str, Any]],
    title: str = "",
    about: str = "",
    parts: dict[str, Any] | None = None,
    table: dict[str, Any] | None = None,
    out: str = "runs",
) -> None:
    """Run a method: its tokenizer, its pretraining and its evaluation, as a file under `configs/` describes them.

    The file is a study (see `clustermim study`), so whatever is complete is not run again.

    Args:
        stages: what to run, one after the other.
        title: what it is called.
        about: what it is.
        parts: options that several stages share.
        table: the table to print at the end.
        out: the folder of its runs, which several methods may share.
    """
    record = {"title": title, "about": about, "parts": parts, "stages": stages, "table": table}
    run_study(make_study(record, "method", "the configuration"), out)
