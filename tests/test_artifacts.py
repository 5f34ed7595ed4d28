"""What every kind of artifact passes: it is read as it was written, and anything else is refused or harmless."""

from __future__ import annotations

import json
import random
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from artifacts import ARTIFACTS, Artifact, edit
from clustermim.errors import UserError
from fuzzing import attempt, fuzz, mutate_bytes

# A report leaves damaged runs out and says so; keys of a summary may be others, and a folder may have no rounds yet.
LENIENT = ("report", "summary", "rounds")
FORMATS = ("tokenizer.json", "results/study.json", "checkpoint.safetensors")


@cache
def made(kind: str) -> Path:
    """The folder of an artifact, made once; nobody writes to it."""
    folder = Path(mkdtemp()) / "made"
    folder.mkdir()
    ARTIFACTS[kind].make(folder)
    return folder


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made(kind), tmp_path / "artifact"))


@pytest.fixture
def artifact(kind: str) -> Artifact:
    return ARTIFACTS[kind]


def check_refused(kind: str, folder: Path, name: str, harmless: bool = False) -> None:
    """One line that says so; some files may be damaged, or others, without harm."""
    result = attempt(kind, 0, name, lambda: ARTIFACTS[kind].read(folder))
    harmless = harmless or kind in LENIENT or name.endswith(".jsonl")  # of which damaged lines are dropped
    assert result == "refused" or (result == "read" and harmless), result


@pytest.mark.parametrize("kind", ARTIFACTS)
class TestEveryArtifact:
    def test_read_as_it_was_written(self, artifact: Artifact, folder: Path, kind: str, tmp_path: Path) -> None:
        again = Path(shutil.copytree(folder, tmp_path / "moved"))
        assert artifact.read(folder) == artifact.read(again)

    def test_truncated(self, artifact: Artifact, folder: Path, kind: str) -> None:
        name = artifact.files[0]
        content = (folder / name).read_bytes()
        for length in (0, 1, len(content) // 2, len(content) - 2):
            (folder / name).write_bytes(content[:length])
            check_refused(kind, folder, name, harmless=name.endswith(".yaml"))  # its beginning may be whole

    def test_missing(self, artifact: Artifact, folder: Path, kind: str) -> None:
        (folder / artifact.files[0]).unlink()
        check_refused(kind, folder, artifact.files[0], harmless=kind == "checkpoint")  # then it starts anew

    def test_damaged(self, artifact: Artifact, folder: Path, kind: str) -> None:
        draw = random.Random(kind)
        for name in artifact.files:
            content = (folder / name).read_bytes()
            for _ in range(6):
                (folder / name).write_bytes(mutate_bytes(content, draw))
                check_refused(kind, folder, name, harmless=True)
            (folder / name).write_bytes(content)

    def test_of_another_type(self, artifact: Artifact, folder: Path, kind: str) -> None:
        for name in artifact.files:
            content = (folder / name).read_bytes()
            for wrong in (b"[]", b"3", b'"text"', b"null", b'{"a": {"b": []}}', b"\x80\x04\x95", b"\xff\xfe"):
                (folder / name).write_bytes(wrong)
                check_refused(kind, folder, name, harmless=name.endswith("config.yaml"))  # keys that are gone
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("kind", [kind for kind, made in ARTIFACTS.items() if made.files[0].endswith(FORMATS)])
def test_of_another_version(artifact: Artifact, folder: Path) -> None:
    name = artifact.files[0]
    if name.endswith(".json"):
        edit(folder / name, lambda record: {**record, "format": 99})
        artifact.seal(folder)
    else:
        with safe_open(folder / name, "pt") as file:
            record = json.loads(file.metadata()["clustermim"])
        save_file(load_file(folder / name), folder / name, {"clustermim": json.dumps({**record, "format": 99})})
    with pytest.raises(UserError, match=r"format [12]|does not hold results"):
        artifact.read(folder)


def test_mutations_are_refused_or_harmless() -> None:
    ended, failures = fuzz([*ARTIFACTS, "spec"], 250, seed=7, seconds=60)
    assert not failures, failures[0]
    assert ended["refused"] > ended["read"] > 0


def test_the_fuzzer_finds_what_it_looks_for() -> None:
    def fail() -> None:
        raise KeyError("x")

    def grow() -> None:
        bytearray(10**11)

    def refuse() -> None:
        raise UserError("no")

    assert attempt("a", 0, "b", refuse) == "refused"
    assert attempt("a", 0, "b", dict) == "read"
    assert "KeyError" in str(attempt("a", 0, "b", fail))
    assert "MemoryError" in str(attempt("a", 0, "b", grow))
