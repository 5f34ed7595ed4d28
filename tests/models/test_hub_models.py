"""Exports on the hub, which is a folder here: pushed where the user says so, and loaded by name."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch

import clustermim as cm
from clustermim import hub
from clustermim.cli import main
from clustermim.errors import ConfigError, MissingExtraError, RunError
from clustermim.models import Encoder, build_backbone

NAME = "somebody/micro"


class FakeHub:
    """Repositories as folders, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.private, self.commits, self.problem = folder, dict[str, bool](), 0, ""

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> Any:
        if self.problem:
            raise OSError(self.problem)
        assert exist_ok
        full = name if "/" in name else f"somebody/{name}"
        (self.folder / full).mkdir(parents=True, exist_ok=True)
        self.private.setdefault(full, private)
        return SimpleNamespace(repo_id=full)

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: Sequence[str]
    ) -> None:
        for path in (self.folder / repo_id).iterdir():
            if any(fnmatch(path.name, pattern) for pattern in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        self.commits += 1

    def model_info(self, name: str, *, timeout: float, files_metadata: bool) -> Any:
        assert files_metadata
        if not (self.folder / name).is_dir():
            raise OSError("404 Client Error:\nRepository Not Found")
        files = (self.folder / name).iterdir()
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=p.name, size=p.stat().st_size) for p in files])

    def download(self, name: str, *, allow_patterns: Sequence[str], local_files_only: bool = False) -> str:
        cache = self.folder / "cache" / name
        if not local_files_only:
            cache.mkdir(parents=True, exist_ok=True)
            for path in (self.folder / name).iterdir():
                if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                    shutil.copy(path, cache)
        if not cache.is_dir():
            raise FileNotFoundError(name)
        return str(cache)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    found = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found.download)
    return found


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    torch.manual_seed(0)
    made = Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3)
    made.save(tmp_path / "run")
    return made


@pytest.mark.parametrize("to", ["timm", "transformers"])
def test_there_and_back(to: Any, encoder: Encoder, fake: FakeHub, tmp_path: Path) -> None:
    cm.export(encoder, to, tmp_path / "out", push=NAME)
    there = {path.name: path.read_bytes() for path in (fake.folder / NAME).iterdir()}
    assert there == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert fake.private == {NAME: True}
    (fake.folder / NAME / "code.py").write_text("raise SystemExit")
    again = cm.load_encoder(f"hf:{NAME}")
    assert again.weights == encoder.weights
    fetched = {path.name for path in (fake.folder / "cache" / NAME).iterdir()}
    assert fetched == {"encoder.json", "model.safetensors"}
    shutil.rmtree(fake.folder / NAME)
    assert cm.load_encoder(f"hf:{NAME}").weights == encoder.weights  # from the cache
    assert cm.load_encoder(f"hf:{tmp_path / 'out'}").weights == encoder.weights  # or a folder


def test_the_card_names_its_place(encoder: Encoder, fake: FakeHub, tmp_path: Path) -> None:
    encoder.export("timm", tmp_path / "out", push=NAME, public=True, license="mit")
    card = (fake.folder / NAME / "README.md").read_text()
    assert f'timm.create_model("hf-hub:{NAME}", pretrained=True)' in card
    assert f'cm.load_encoder("hf:{NAME}")' in card
    assert "license: mit\n" in card
    assert fake.private == {NAME: False}


def test_a_later_push_leaves_nothing_of_an_older_one(encoder: Encoder, fake: FakeHub, tmp_path: Path) -> None:
    encoder.export("transformers", tmp_path / "out", push=NAME)
    (fake.folder / NAME / "notes.md").touch()  # the user's own
    encoder.export("timm", tmp_path / "out", push=NAME, public=True, overwrite=True)
    there = {path.name for path in (fake.folder / NAME).iterdir()}
    assert there == {"README.md", "config.json", "encoder.json", "model.safetensors", "notes.md"}
    assert fake.private == {NAME: True}  # as it was
    assert fake.commits == 2


def test_nothing_goes_there_without_a_word(encoder: Encoder, fake: FakeHub, tmp_path: Path) -> None:
    assert main(["export", str(tmp_path / "run"), "--to", "timm", "--out", str(tmp_path / "out")]) == 0
    assert not fake.folder.exists()


def test_on_the_command_line(
    encoder: Encoder, fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(tmp_path / "run"), "--to", "timm", "--out", str(tmp_path / "out"), "--push"]
    assert main([*words, NAME]) == 0
    assert f"and to {NAME} on the hub" in capsys.readouterr().out
    fake.problem = "401 Client Error.\nUnauthorized"
    assert main([*words, NAME, "--overwrite"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {NAME} was not pushed (OSError: 401 Client Error. Unauthorized): check the name")
    assert (tmp_path / "out" / "README.md").exists()


def test_measured_by_name(encoder: Encoder, fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder.export("timm", tmp_path / "out", push=NAME)
    data = "textures:?images=32&grid=2&patch=4&classes=2"
    assert main(["knn", f"hf:{NAME}", "--data", data, "--test-data", data]) == 0
    assert (tmp_path / "hf-somebody-micro" / "knn" / "summary.json").exists()


@pytest.mark.parametrize("name", ["a b", "../x", "a/b/c", "", "https://x.y/z"])
def test_names_that_cannot_be(name: str, encoder: Encoder, fake: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no name of the hub"):
        encoder.export("timm", tmp_path / "out", push=name)
    with pytest.raises(RunError, match="no such folder, nor is it a name of the hub"):
        cm.load_encoder(f"hf:{name or '/nowhere'}")
    assert not (tmp_path / "out").exists()


def test_what_the_hub_lacks_or_has_too_much_of(
    encoder: Encoder, fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=r"hf:no/where is neither .*404 Client Error: Repository.*bring encoder\.json"):
        cm.load_encoder("hf:no/where")
    encoder.export("timm", tmp_path / "out", push=NAME)
    monkeypatch.setattr(hub, "MOST_BYTES", 1000)
    with pytest.raises(RunError, match=r"its files have [\d,]+ bytes, and 1,000 are the most"):
        cm.load_encoder(f"hf:{NAME}")
    monkeypatch.undo()


def test_a_strangers_files_are_checked(encoder: Encoder, fake: FakeHub, tmp_path: Path) -> None:
    encoder.export("timm", tmp_path / "out", push=NAME)
    (fake.folder / NAME / "model.safetensors").write_bytes(b"\x80\x04pickled")
    with pytest.raises(RunError, match=r"model\.safetensors is truncated or was changed"):
        cm.load_encoder(f"hf:{NAME}")


def test_without_the_library(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"clustermim\[hf\]"):
        encoder.export("timm", tmp_path / "out", push=NAME)
    with pytest.raises(MissingExtraError, match=r"clustermim\[hf\]"):
        cm.load_encoder(f"hf:{NAME}")
    assert not (tmp_path / "out").exists()
