"""Run folders: what every stage writes, readable without this package.

    config.yaml     the complete configuration of the stage (not where it was written)
    metrics.jsonl   one JSON object a step
    summary.json    results, data, seed, seconds, versions, git commit; written last: with it a run is complete

A stage works in a hidden folder beside its destination, which is renamed when it is complete. So a folder is
there whole or not at all, and what was there before survives a failure.

A stage that takes long works in its destination instead, so that a later process can continue it; such a folder is
complete when summary.json is there. Where it replaces a complete run, it works in `.NAME.new` beside it until then.
Either way a lock beside the destination keeps a second process out.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from clustermim.distributed import barrier, rank
from clustermim.errors import RunError
from clustermim.exchange import beside, clean, put_in_place, recover, remove
from clustermim.files import locked, user_path, wrap_os_errors, write_atomic, writing
from clustermim.provenance import git_commit, versions
from clustermim.reading import check_shape, parse_json, read_bytes, read_json, read_yaml

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
REPLACING = ".replacing"  # the mark of a complete run whose older one is not yet deleted

# The way to a cell of a study, which is the same cell wherever it was moved: its name has a hash of its options.
CELL = re.compile(r"(?<=')[^']*/(?=[a-z-]+-[0-9a-f]{12}['?])")

MOST_METRICS = 32_000_000  # bytes of metrics.jsonl that are read

DATA = {"spec": str, "fingerprint": str, str: object}  # what a source says of itself
SUMMARY_SHAPE = {"stage": str, "results": {str: object}, "data": DATA, "test_data": DATA, str: object}

# Options of long stages that say where and when, not what: no part of a configuration.
NOT_CONFIGURATION = ("out", "resume", "overwrite", "track", "stop_after", "keep", "save_every", "workers", "strategy")


class Run:
    """A run folder while its stage is at work; the first rank writes it."""

    def __init__(self, folder: Path, stage: str, config: dict[str, Any], out: Path | None = None) -> None:
        self.folder, self.stage, self.config = folder, stage, config
        self.out = out or folder  # where it is when it is complete
        self.summary: dict[str, Any] = {}  # filled by the stage; saved last
        self.disposable: list[Path] = []  # files that a complete run does not need
        self._start = time.monotonic()

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        if rank() == 0:
            path = self.folder / METRICS
            with writing(path), path.open("a", encoding="utf-8") as file:
                file.write(to_json(values) + "\n")

    def finish(self) -> None:
        """Write summary.json."""
        record = {
            "stage": self.stage,
            **self.summary,
            "seed": self.config.get("seed"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._start, 3),
            "versions": versions(),
            "git_commit": git_commit(),
        }
        if rank() == 0:
            for path in self.disposable:
                path.unlink(missing_ok=True)
            write_atomic(self.folder / SUMMARY, (to_json(record, indent=2) + "\n").encode())

    def rewind(self, step: int) -> list[dict[str, Any]]:
        """Drop the lines of metrics.jsonl beyond a step, and a line that a kill left unfinished; the others, read."""
        lines = read_metrics(self.folder / METRICS)
        kept = [line for line in lines if line.endswith(b"\n") and _step(line) <= step]
        if rank() == 0 and len(kept) < len(lines):
            write_atomic(self.folder / METRICS, b"".join(kept))
        return [parse_json(line) for line in kept]


@contextmanager
def open_resumable_run(
    out: str | Path, stage: str, config: dict[str, Any], *, resume: bool = False, overwrite: bool = False
) -> Iterator[Run]:
    """A run folder at `out` from the start, complete when the block ends well; otherwise `resume` continues it."""
    folder = Path(out)
    with locked(folder) if rank() == 0 else nullcontext():
        if rank() == 0:
            with wrap_os_errors(folder):
                _start_or_resume(folder, stage, config, resume, overwrite)
        barrier()  # the others read what the first rank has put there
        work = _replacement(folder) if _replacement(folder).is_dir() else folder
        run = Run(work, stage, config, folder)
        yield run
        run.finish()
        if rank() == 0 and work != folder:
            _take_place(work, folder)
        barrier()


@contextmanager
def pending_run(
    out: str | Path, stage: str, config: dict[str, Any], *, resume: bool = False, overwrite: bool = False
) -> Iterator[Callable[[], Run]]:
    """A function that opens a resumable run when it is first called; complete when the block ends well."""
    with ExitStack() as stack:
        opening = open_resumable_run(out, stage, config, resume=resume, overwrite=overwrite)
        yield cache(lambda: stack.enter_context(opening))


@contextmanager
def open_run(out: str | Path, stage: str, config: dict[str, Any], *, overwrite: bool = False) -> Iterator[Run]:
    """A run folder that appears at `out` when the block ends well, and leaves nothing behind when it does not."""
    folder = Path(out)
    with locked(folder) if rank() == 0 else nullcontext():
        if rank() == 0:
            recover(folder)
            clean(folder)
        barrier()
        check_writable(folder, overwrite)
        barrier()  # all have looked before one writes
        with _staged(folder, stage, config) as staging:
            run = Run(staging, stage, config, folder)
            yield run
            run.finish()
    barrier()  # it is there for every rank


@contextmanager
def _staged(folder: Path, stage: str, config: dict[str, Any]) -> Iterator[Path]:
    """A staged folder with a configuration."""
    with staged(folder) as staging:
        text = yaml.safe_dump({"stage": stage, **config}, sort_keys=False, allow_unicode=True)
        with writing(folder / CONFIG):
            (staging / CONFIG).write_text(text, encoding="utf-8")
        (staging / METRICS).touch()
        yield staging


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A hidden folder beside its destination, whose place it takes when the block ends well."""
    staging = beside(folder, "partial")
    with wrap_os_errors(folder):
        staging.mkdir(parents=True)
    try:
        yield staging
        if rank() == 0:  # the other ranks hold the same
            put_in_place(staging, folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(f"cannot write {folder}: {error.strerror}; free some space or choose another --out") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_writable(folder: Path, overwrite: bool, resume: bool = False) -> None:
    """Refuse a destination that holds a run, or that is not ours to replace."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another --out")
    if folder.resolve() == Path.cwd():
        raise RunError(f"{folder} is the folder you are in, which cannot be replaced; choose another --out")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / SUMMARY).exists() and not (folder / CONFIG).exists():
        raise RunError(f"{folder} holds other files and is not a run folder; choose another --out")
    if (folder / SUMMARY).exists() and not overwrite:
        raise RunError(f"{folder} holds a complete run; choose another --out, or replace it with --overwrite")
    if not overwrite and not resume:  # of a stage that takes long: others leave none
        raise RunError(f"{folder} holds an unfinished run; continue it with --resume, or replace it with --overwrite")


def check_not_inside(used: str | Sequence[str] | None, out: str | Path, what: str) -> None:
    """Refuse to write over what is read: run folders, perhaps as texts of teachers `run:FOLDER?layer=…`."""
    for text in [used] if isinstance(used, str) else used or ():
        place = user_path(text.removeprefix("run:").partition("?")[0])
        if place.exists() and place.resolve().is_relative_to(Path(out).resolve()):
            raise RunError(f"--out {out} holds {what}, which would be lost; choose another --out")


def check_same_config(folder: Path, options: Mapping[str, Any], fingerprint: str) -> None:
    """Refuse to take a complete run whose configuration has other values of these options, or of other images."""
    made = read_mapping(folder / CONFIG, f"{folder} holds no configuration of its run; choose another --out")
    for key, value in options.items():
        if key in made and made[key] != value:
            raise RunError(f"{folder} was made with {key} {made[key]!r}, not {value!r}; choose another --out")
    if (read_summary(folder).get("data") or {}).get("fingerprint") != fingerprint:
        raise RunError(f"{folder} was made of other images; choose another --out")


def read_summary(folder: str | Path) -> dict[str, Any]:
    """summary.json of a complete run folder."""
    path = Path(folder) / SUMMARY
    record = read_mapping(path, f"{folder} holds no complete run: {SUMMARY} is not there")
    check_shape(record, SUMMARY_SHAPE, str(path), RunError)
    return record


def read_metrics(path: Path) -> list[bytes]:
    """The lines of metrics.jsonl, as they are."""
    try:
        return read_bytes(path, MOST_METRICS).splitlines(keepends=True)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}; bring it back, or use --overwrite") from error


def read_mapping(path: Path, missing: str) -> dict[str, Any]:
    """The keys and values of a JSON or YAML file; `missing` is the error where there is none."""
    try:
        record = (read_json if path.suffix == ".json" else read_yaml)(path)
    except FileNotFoundError:
        raise RunError(missing) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise RunError(f"{path} cannot be read: {reason}; bring it back, or remove it") from error
    if not isinstance(record, dict):
        raise RunError(f"{path} is of another version or damaged: it holds no options or results by name")
    return record


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: a value that is not finite becomes null, a path its text."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False, default=os.fspath)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replacement(folder: Path) -> Path:
    """Where a long run works that shall replace a complete one."""
    return folder.absolute().with_name(f".{folder.absolute().name}.new")


def _start_or_resume(folder: Path, stage: str, config: dict[str, Any], resume: bool, overwrite: bool) -> None:
    """Make `out`, or what shall replace it, ready: an empty folder, or an unfinished run of the same configuration."""
    if resume and overwrite:
        raise RunError("--resume continues a run and --overwrite replaces it: choose one")
    new = _replacement(folder)
    recover(folder)
    clean(folder)
    clean(new)
    _finish_replacing(new, folder)
    if new.is_dir() and not overwrite:
        if not resume:
            remedy = "continue it with --resume, or begin it anew with --overwrite"
            raise RunError(f"{folder} has an unfinished replacement; {remedy}")
        _continue(new, folder, {"stage": stage, **config})
        return
    check_writable(folder, overwrite, resume)
    remove(new)
    if overwrite or not folder.is_dir() or not any(folder.iterdir()):
        with _staged(new if (folder / SUMMARY).exists() else folder, stage, config):
            pass  # it has its configuration from its first moment
    else:
        _continue(folder, folder, {"stage": stage, **config})


def _take_place(new: Path, folder: Path) -> None:
    """Let a complete run take the place of an older one; the mark in it tells the two apart after a kill."""
    (new / REPLACING).touch()
    put_in_place(new, folder)
    (folder / REPLACING).unlink()


def _finish_replacing(new: Path, folder: Path) -> None:
    """Do what a kill left to do: the new run is in its place and the old one not yet deleted, or the other way."""
    if (folder / REPLACING).exists():
        remove(new)
        (folder / REPLACING).unlink()
    elif (new / REPLACING).exists():
        _take_place(new, folder)


def _continue(folder: Path, out: Path, config: dict[str, Any]) -> None:
    """Make an unfinished run ready to continue."""
    _check_same(folder, out, config)
    for part in folder.rglob(".*.partial"):  # what a kill left unfinished, as large as a checkpoint
        part.unlink()


def _check_same(folder: Path, out: Path, config: dict[str, Any]) -> None:
    """Refuse to resume with another configuration, by the first key that differs."""
    old = read_mapping(folder / CONFIG, f"{folder} holds no configuration, so the run cannot be continued")
    new = yaml.safe_load(yaml.safe_dump(config, sort_keys=False))  # as it would be read back
    for key in [*new, *old]:
        if key not in old and not new[key]:  # an option that came with a later version, and is off
            continue
        there, here = (repr(values[key]) if key in values else "absent" for values in (old, new))
        if CELL.sub("", there) != CELL.sub("", here):
            raise RunError(
                f"{out} was started with {key} {there}, not {here}; resume it as it was, or use another --out"
            )


def _step(line: bytes) -> float:
    """The step of a line of metrics; beyond all steps if a crash of the machine damaged it."""
    try:
        return float(parse_json(line).get("step", 0))
    except (ValueError, TypeError, AttributeError):
        return math.inf
