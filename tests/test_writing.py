"""Every file that cannot be written is named: each write of each command fails in turn, as on a full disk."""

from __future__ import annotations

import builtins
import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import clustermim as cm
from clustermim.cli import main
from clustermim.errors import RunError, WriteError
from clustermim.files import write_atomic, writing

DATA = "textures:?images=16&grid=2&patch=4"
SHORT = f"--data {DATA} --patch-size 4 --epochs 1 --batch-size 16 --device cpu"
COMMANDS = {
    "fit": f"fit kmeans --data {DATA} --k 4 --patch-size 4 --out new",
    "fit vq": f"fit vq {SHORT} --k 4 --width 4 --out new",
    "tokenize": f"tokenize km --data {DATA} --out new.npy",
    "score": f"score km --data {DATA} --permutations 2",
    "show": f"show km --data {DATA} --out new.png",
    "pretrain": f"pretrain {SHORT} --tokenizer km --out new",
    "probe": f"probe run --data {DATA} --test-data {DATA}",
    "finetune": f"finetune run --data {DATA} --test-data {DATA} --epochs 1 --batch-size 16 --device cpu --out new",
    "export": "export run --to transformers --out new",
    "study": "study study.yaml --results new.json",
    "report": "report km --out new.html",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, an encoder and a study, as commands read them."""
    folder = tmp_path_factory.mktemp("made") / "all"
    cm.KMeansTokenizer(4, 4).fit(DATA).save(folder / "km")
    cm.pretrain(DATA, patch_size=4, epochs=0, device="cpu").save(folder / "run")
    stage = {"name": "tokens", "stage": "fit random", "options": {"data": DATA, "k": 4, "patch_size": 4}}
    (folder / "study.yaml").write_text(yaml.safe_dump({"stages": [stage]}))
    return folder


def intercept(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[str], bool]) -> list[str]:
    """The names of files that are opened to be written, from now on; those that are full take no byte."""
    opened: list[str] = []
    original = io.open

    def open_file(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if isinstance(file, str | os.PathLike) and set(mode) & set("wax"):
            name = re.sub(r"^\.(.*)\.[0-9a-f]{8}\.partial$", r"\1", Path(file).name)
            opened.append(name)
            file = "/dev/full" if is_full(name) else file
        return original(file, mode, *more, **options)

    monkeypatch.setattr(io, "open", open_file)
    monkeypatch.setattr(builtins, "open", open_file)
    return opened


@pytest.mark.parametrize("command", COMMANDS)
def test_each_write_of_a_command_fails_in_turn(
    command: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = COMMANDS[command].split()

    def run(name: str | None) -> tuple[int, list[str]]:
        folder = shutil.copytree(made, tmp_path / (name or "whole"))
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("CLUSTERMIM_HOME", str(folder / "home"))
            written = intercept(patch, lambda other: other == name)
            return main(words), written

    code, written = run(None)
    assert code == 0
    names = set(written) - {
        name for name in written if re.fullmatch(r"[0-9a-f]{16}\.json|(train|test)\.npz|fontlist.*", name)
    }
    assert names  # those that are left out are of the cache, which may fail
    for name in sorted(names):
        capsys.readouterr()
        code, _ = run(name)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert code == 2
        assert name in line, line
        assert "No space left on device" in line


def test_a_write_error_is_of_this_package(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*/file/below.txt: File exists; free some space"):
        write_atomic(tmp_path / "file" / "below.txt", b"x")
    with pytest.raises(WriteError, match="cannot write here: broken; "), writing(Path("here")):
        raise OSError("broken")
