"""Run folders are there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from clustermim import exchange, provenance
from clustermim.errors import BusyError, RunError
from clustermim.files import write_atomic
from clustermim.runs import check_not_inside, open_resumable_run, open_run, read_summary, to_json


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_complete_run(tmp_path: Path) -> None:
    with open_run(tmp_path / "deep" / "run", "fit", {"k": 3, "seed": 7}) as run:
        run.log(step=1, loss=0.5)
        run.log(step=2, loss=float("nan"))
        run.summary = {"results": {"x": 1}}
        assert not (tmp_path / "deep" / "run").exists()
    folder = tmp_path / "deep" / "run"
    assert listing(folder) == ["config.yaml", "metrics.jsonl", "summary.json"]
    assert listing(folder.parent) == ["run"]
    assert yaml.safe_load((folder / "config.yaml").read_text()) == {"stage": "fit", "k": 3, "seed": 7}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}]
    summary = read_summary(folder)
    assert summary["results"] == {"x": 1}
    assert summary["seed"] == 7
    assert summary["seconds"] >= 0
    assert {"clustermim", "python", "torch"} <= summary["versions"].keys()
    assert "git_commit" in summary
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), open_run(tmp_path / "run", "fit", {}):
        raise error
    assert listing(tmp_path) == []


def test_a_complete_run_is_not_replaced_unasked(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "fit", {"k": 1}):
        pass
    with pytest.raises(RunError, match="holds a complete run; choose another --out, or replace it with --overwrite"):
        open_run(tmp_path / "run", "fit", {"k": 2}).__enter__()
    with pytest.raises(ValueError, match="late"), open_run(tmp_path / "run", "fit", {"k": 2}, overwrite=True):
        raise ValueError("late")
    assert "k: 1" in (tmp_path / "run" / "config.yaml").read_text()  # the old one survives a failure
    with open_run(tmp_path / "run", "fit", {"k": 2}, overwrite=True):
        pass
    assert "k: 2" in (tmp_path / "run" / "config.yaml").read_text()
    assert listing(tmp_path) == ["run"]


def test_what_is_not_a_run_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(RunError, match="holds other files and is not a run folder"):
        open_run(tmp_path / "photos", "fit", {}, overwrite=True).__enter__()
    with pytest.raises(RunError, match="is a file"):
        open_run(tmp_path / "file", "fit", {}, overwrite=True).__enter__()
    with pytest.raises(RunError, match="cannot write to"):
        open_run(tmp_path / "file" / "below", "fit", {}).__enter__()
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"x"


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="is the folder you are in"), open_run(".", "fit", {}):
        pass


def test_a_home_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="holds the teacher"):
        check_not_inside("run:~/run?layer=2", tmp_path / "run", "the teacher")


@pytest.mark.parametrize("used", ["run", "run/inner", "run:{}/run?layer=2", "run/file.safetensors"])
def test_what_is_read_lies_apart_from_what_is_written(tmp_path: Path, used: str) -> None:
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "run" / "file.safetensors").touch()
    text = used.format(tmp_path) if "{}" in used else str(tmp_path / used)
    with pytest.raises(RunError, match="holds the teacher, which would be lost"):
        check_not_inside(text, tmp_path / "run", "the teacher")
    check_not_inside(text, tmp_path / "run" / "below", "the teacher")
    with pytest.raises(RunError, match="holds the teacher"):
        check_not_inside(["hog:", text], tmp_path / "run", "the teacher")
    check_not_inside("hf:facebook/dino-vits16", tmp_path / "run", "the teacher")
    check_not_inside(None, tmp_path / "run", "the teacher")


def test_an_empty_folder_may_be_used_and_an_unfinished_run_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with open_run(tmp_path / "empty", "fit", {}):
        pass
    assert (tmp_path / "empty" / "summary.json").exists()
    (tmp_path / "unfinished").mkdir()
    for name in ("config.yaml", "checkpoint.safetensors"):
        (tmp_path / "unfinished" / name).touch()
    with pytest.raises(RunError, match="holds an unfinished run"), open_run(tmp_path / "unfinished", "fit", {}):
        pass
    assert (tmp_path / "unfinished" / "checkpoint.safetensors").exists()
    with open_run(tmp_path / "unfinished", "fit", {}, overwrite=True):
        pass
    assert (tmp_path / "unfinished" / "summary.json").exists()


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(tmp_path / "run", "fit", {"k": 1}):
        pass

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(RunError, match=r"cannot write .*run.*summary.json: No space left on device; free some space"),
        open_run(tmp_path / "run", "fit", {"k": 2}, overwrite=True),
    ):
        pass
    assert "k: 1" in (tmp_path / "run" / "config.yaml").read_text()
    assert listing(tmp_path) == ["run"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt("input/output")])
def test_a_failed_exchange_puts_the_old_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    with open_run(tmp_path / "run", "fit", {"k": 1}):
        pass
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if "partial" in self.name:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    monkeypatch.setattr(exchange, "exchange", lambda one, other: False)  # a system without it
    with pytest.raises(type(error), match="input/output"), open_run(tmp_path / "run", "fit", {"k": 2}, overwrite=True):
        pass
    assert "k: 1" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_bad_summary(tmp_path: Path, content: str) -> None:
    with pytest.raises(RunError, match=r"no complete run: summary.json is not there"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(RunError, match=r"summary.json"):
        read_summary(tmp_path)


def test_json_is_strict() -> None:
    assert to_json({"a": [1.5, float("inf")], "b": (float("nan"),)}) == '{"a": [1.5, null], "b": [null]}'


def test_write_atomic(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one")

    def fail(file: object) -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        write_atomic(path, fail)
    assert path.read_bytes() == b"one"
    write_atomic(path, lambda file: file.writelines([b"t", b"wo"]))
    assert path.read_bytes() == b"two"
    assert listing(path.parent) == ["file"]


def test_git_commit_only_in_our_own_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.git_commit() is None


def unfinished(folder: Path, config: dict[str, Any]) -> None:
    """A run that failed at work."""
    with suppress(ValueError), open_resumable_run(folder, "train", config) as run:
        run.log(step=1)
        run.log(step=2)
        raise ValueError


def test_a_resumable_run_is_written_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with open_resumable_run(folder, "train", {"k": 3, "seed": 7}, resume=True) as run:  # nothing there: it starts
        assert run.folder == folder
        assert listing(folder) == ["config.yaml", "metrics.jsonl"]
        run.log(step=1)
        run.summary = {"results": {"a": 1}}
    assert listing(folder) == ["config.yaml", "metrics.jsonl", "summary.json"]
    assert listing(folder.parent) == ["run"]
    assert read_summary(folder)["seed"] == 7
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask()
    for resume in (False, True):
        with pytest.raises(RunError, match="holds a complete run"):
            open_resumable_run(folder, "train", {"k": 3, "seed": 7}, resume=resume).__enter__()
    with open_resumable_run(folder, "train", {"k": 4}, overwrite=True) as run:
        assert listing(run.folder) == ["config.yaml", "metrics.jsonl"]  # nothing of the old one is taken over
        assert run.out == folder
        assert read_summary(folder)["seed"] == 7  # which is there until the new one is complete
    assert read_summary(folder)["seed"] is None
    assert listing(folder) == ["config.yaml", "metrics.jsonl", "summary.json"]
    assert listing(folder.parent) == ["run"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder, busy = tmp_path / "run", "another process is writing .*run; wait for it, or choose another --out"
    (tmp_path / ".run.lock").touch()  # that a killed process left
    for opened in (open_run, open_resumable_run):
        with opened(folder, "fit", {"k": 3}, overwrite=True) as run:
            run.log(step=1)
            for other in (open_run, open_resumable_run):
                with pytest.raises(BusyError, match=busy):
                    other(folder, "fit", {"k": 4}, overwrite=True).__enter__()
            run.log(step=2)
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
        assert listing(tmp_path) == ["run"]


def test_an_unfinished_run_waits_for_a_decision(tmp_path: Path) -> None:
    unfinished(tmp_path / "run", {"k": 3})
    (tmp_path / "run" / ".checkpoint.safetensors.0a1b2c3d.partial").write_bytes(b"killed")
    with pytest.raises(RunError, match="unfinished run; continue it with --resume, or replace it with --overwrite"):
        open_resumable_run(tmp_path / "run", "train", {"k": 3}).__enter__()
    with pytest.raises(RunError, match="choose one"):
        open_resumable_run(tmp_path / "run", "train", {"k": 3}, resume=True, overwrite=True).__enter__()
    assert len(listing(tmp_path / "run")) == 3  # a refusal touches nothing: another process may be at work there
    with open_resumable_run(tmp_path / "run", "train", {"k": 3}, resume=True) as run:
        run.rewind(1)
        run.log(step=2, again=True)
    assert listing(tmp_path / "run") == ["config.yaml", "metrics.jsonl", "summary.json"]
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2, "again": true}\n'


@pytest.mark.parametrize(
    ("stage", "config", "message"),
    [
        ("train", {"k": 4, "model": {"depth": 2, "size": [1, 2]}, "x": None}, "was started with k 3, not 4"),
        (
            "train",
            {"k": 3, "model": {"depth": 9, "size": [1, 2]}, "x": None},
            "with model .* 2, .*}, not .* 9,",
        ),
        (
            "train",
            {"k": 3, "model": {"depth": 2, "size": [1, 3]}, "x": None},
            r"with model .*\[1, 2\]}, not .*\[1, 3\]}",
        ),
        ("train", {"k": 3, "model": {"depth": 2, "size": [1, 2]}}, "with x None, not absent"),
        ("train", {"k": 3, "model": {"depth": 2, "size": [1, 2]}, "x": None, "y": 1}, "with y absent, not 1"),
        ("probe", {"k": 3, "model": {"depth": 2, "size": [1, 2]}, "x": None}, "with stage 'train', not 'probe'"),
    ],
)
def test_a_changed_configuration_is_not_resumed(
    tmp_path: Path, stage: str, config: dict[str, Any], message: str
) -> None:
    unfinished(tmp_path / "run", {"k": 3, "model": {"depth": 2, "size": (1, 2)}, "x": None})
    with pytest.raises(RunError, match=message):
        open_resumable_run(tmp_path / "run", stage, config, resume=True).__enter__()


def test_an_option_of_a_later_version_that_is_off_is_no_change(tmp_path: Path) -> None:
    unfinished(tmp_path / "run", {"k": 3})
    with open_resumable_run(tmp_path / "run", "train", {"k": 3, "teacher": None, "unit": 0}, resume=True) as run:
        assert run.folder == tmp_path / "run"


@pytest.mark.parametrize("content", [b"k: [", b"\xff\xfe\x00", b""])
def test_a_damaged_configuration_is_not_resumed(tmp_path: Path, content: bytes) -> None:
    unfinished(tmp_path / "run", {"k": 3})
    (tmp_path / "run" / "config.yaml").write_bytes(content)
    with pytest.raises(RunError, match=r"config.yaml cannot be read|config.yaml is of another version or damaged"):
        open_resumable_run(tmp_path / "run", "train", {"k": 3}, resume=True).__enter__()


def test_a_resumable_run_never_replaces_other_files(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    for options in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(RunError, match="is not a run folder"):
            open_resumable_run(tmp_path / "photos", "train", {}, **options).__enter__()
    with pytest.raises(RunError, match="cannot write to"):
        open_resumable_run(tmp_path / "photos" / "cat.jpg" / "below", "train", {}).__enter__()
    assert listing(tmp_path / "photos") == ["cat.jpg"]


def test_damaged_lines_are_dropped(tmp_path: Path) -> None:
    unfinished(tmp_path / "run", {})
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'\x00\x00\n[1]\n{"note": 1}\n{"step": 3}\n{"st')
    with open_resumable_run(tmp_path / "run", "train", {}, resume=True) as run:
        run.rewind(2)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n{"note": 1}\n'
