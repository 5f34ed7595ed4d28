"""Replacing a run: the old one or the new one is there, whenever a kill comes, and nothing is left beside it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clustermim import exchange
from clustermim.errors import RunError
from clustermim.files import write_atomic
from clustermim.runs import open_resumable_run, open_run, read_summary


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def complete(folder: Path, k: int) -> None:
    with open_resumable_run(folder, "train", {"k": k}, overwrite=True) as run:
        run.log(step=1)


def test_a_replacement_is_continued_or_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    complete(folder, 1)
    for _ in range(2):
        with suppress(ValueError), open_resumable_run(folder, "t", {"k": 2}, overwrite=True) as run:
            run.log(step=1)
            raise ValueError
        assert "k: 1" in (folder / "config.yaml").read_text()
    with pytest.raises(RunError, match="has an unfinished replacement; continue it with --resume, or begin it anew"):
        open_resumable_run(folder, "t", {"k": 2}).__enter__()
    with pytest.raises(RunError, match=r"run was started with k 2, not 3"):
        open_resumable_run(folder, "t", {"k": 3}, resume=True).__enter__()
    with open_resumable_run(folder, "t", {"k": 2}, resume=True) as run:
        assert len(run.rewind(1)) == 1
    assert "k: 2" in (folder / "config.yaml").read_text()
    assert listing(tmp_path) == ["run"]


class Killed(BaseException):
    """As a kill: nothing is cleaned up after it."""


@pytest.mark.parametrize("atomic", [True, False])
def test_a_kill_at_every_moment_of_a_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    folder, states = tmp_path / "run", set[tuple[bool, bool]]()
    for stop in range(40):
        shutil.rmtree(tmp_path)
        complete(folder, 1)
        with monkeypatch.context() as patch:
            if not atomic:
                patch.setattr(exchange, "exchange", lambda one, other: False)
            with suppress(Killed):
                killed_at(patch, stop, lambda: complete(folder, 2))
        states.add((folder.exists(), any(tmp_path.glob(".run.*"))))
        if folder.exists() or atomic:
            assert read_summary(folder)["stage"] == "train"
        with suppress(RunError), open_resumable_run(folder, "train", {"k": 2}, resume=True):
            pass
        assert read_summary(folder)["stage"] == "train"
        assert listing(tmp_path) == ["run"]
        assert ".replacing" not in listing(folder)
    assert (True, True) in states
    assert ((False, True) in states) == (not atomic)


def killed_at(patch: pytest.MonkeyPatch, stop: int, work: Callable[[], None]) -> None:
    """Do something whose system call number `stop` on files is its last: all after it fail."""
    calls = iter(range(10_000))
    for owner, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"),
                        (exchange, "exchange")):  # fmt: skip
        real = getattr(owner, name)

        def count(*given: Any, real: Any = real, **named: Any) -> Any:
            if next(calls) >= stop:
                raise Killed
            return real(*given, **named)

        patch.setattr(owner, name, count)
    work()


def test_what_kills_left_beside_a_run_is_removed(tmp_path: Path) -> None:
    for opened in (open_run, open_resumable_run):
        for name in ("partial-0a1b2c3d", "old-0a1b2c3d"):
            (tmp_path / f".run.{name}").mkdir()
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / ".run2.partial-0a1b2c3d").mkdir(exist_ok=True)  # of another run
        with opened(tmp_path / "run", "fit", {"k": 1}, overwrite=True):
            pass
        assert listing(tmp_path) == [".run2.partial-0a1b2c3d", "run"]


def test_what_was_moved_away_is_put_back(tmp_path: Path) -> None:
    for opened in (open_run, open_resumable_run):
        complete(tmp_path / "run", 1)
        (tmp_path / "run").rename(tmp_path / ".run.old-0a1b2c3d")
        with pytest.raises(RunError, match="holds a complete run"):
            opened(tmp_path / "run", "fit", {"k": 1}).__enter__()
        assert listing(tmp_path) == ["run"]


def test_abandoned_parts_of_a_file_are_removed(tmp_path: Path) -> None:
    for name, age in (
        (".file.0a1b2c3d.partial", 9999),
        (".file.1a1b2c3d.partial", 9),
        (".other.0a1b2c3d.partial", 9999),
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    write_atomic(tmp_path / "file", b"")
    assert listing(tmp_path) == [".file.1a1b2c3d.partial", ".other.0a1b2c3d.partial", "file"]
