"""Where each run comes from, by its own summary and configuration, and the command that would make it again."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clustermim.errors import UserError
from clustermim.factories import PREFIX
from clustermim.parsing import option_word
from clustermim.reading import fits
from clustermim.reports.collect import RunInfo
from clustermim.reports.numbers import counted
from clustermim.reports.records import NamedRun, as_float
from clustermim.runs import NOT_CONFIGURATION
from clustermim.stage_table import STAGES


@dataclass(frozen=True)
class Origin:
    """A row of the table of runs; what a file does not say is empty."""

    title: str
    stage: str
    model: str
    size: str  # parameters of an encoder, or tokens of a tokenizer
    seed: str
    epochs: str
    seconds: float | None
    date: str
    commit: str
    version: str
    data: str
    command: str | None


def origins(runs: Sequence[NamedRun], trust_runs: bool = False) -> list[Origin]:
    """A row for each run."""
    return [_origin(title, run, trust_runs) for title, run in runs]


def _origin(title: str, run: RunInfo, trust_runs: bool) -> Origin:
    parameters, tokens = (as_float(run.results.get(name)) for name in ("parameters", "vocab_size"))
    size = f"{counted(parameters)} weights" if parameters else f"{counted(tokens)} tokens" if tokens else ""
    versions = run.summary.get("versions")
    return Origin(
        title=title,
        stage=run.stage,
        model=_word(run.config.get("model")) if run.stage == "pretrain" else "",
        size=size,
        seed=_word(run.config.get("seed")),
        epochs=_word(run.config.get("epochs")) if run.stage == "pretrain" or run.config.get("epochs") else "",
        seconds=as_float(run.summary.get("seconds")),
        date=_word(run.summary.get("date"))[:16].replace("T", " "),
        commit=_short(_word(run.summary.get("git_commit"))),
        version=_word(versions.get("clustermim")) if isinstance(versions, dict) else "",
        data=run.data or "",
        command=command(run, trust_runs),
    )


def _word(value: Any) -> str:
    """A plain value of a file as text; of any other kind nothing."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _short(commit: str) -> str:
    """The first twelve digits, and the mark of uncommitted changes."""
    return commit[:12] + ("+" if commit.endswith("+") and len(commit) > 12 else "")


def command(run: RunInfo, trust_runs: bool = False) -> str | None:
    """The command that makes a run again, from its configuration; options at their defaults are left out.

    None where there is no such command, where pasting it could do something else, or where it names code to import,
    unless the runs are trusted.
    """
    stage = STAGES.get(run.stage)
    if stage is None or not run.config:
        return None
    try:
        known = inspect.signature(stage.load(), eval_str=True).parameters
    except (UserError, ImportError):
        return None
    values = {name: run.config[name] for name in known if name in run.config and name not in NOT_CONFIGURATION}
    if any(p.default is p.empty and name not in {**values, "out": ""} for name, p in known.items()):
        return None
    words = ["clustermim", *run.stage.split(), *(str(values.pop(name, "")) for name in stage.positional)]
    for name, value in values.items():
        if value is not None and value != known[name].default and fits(value, known[name].annotation):
            words += _option(name, value)
    words += ["--out", str(run.folder)]
    if not is_safe(words) or "" in words or (not trust_runs and any(PREFIX in word for word in words)):
        return None
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    """An option as the command line has it."""
    if value is True:
        return [option_word(name)]
    return [option_word(name), value if isinstance(value, str) else json.dumps(value)]


def is_safe(words: Sequence[str]) -> bool:
    """Whether words do in a terminal what they look like: no line feeds, no control characters, no invisible ones."""
    return all(word.isprintable() for word in words)
