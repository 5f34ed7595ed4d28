"""The demo walks the path of a user, and says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from clustermim.cli import demo, main
from clustermim.errors import DataError

SMALL = "classes=3&points=8&shared=2&patch=4&grid=4&noise=0.05"
IMAGES = demo.Images("textures", f"textures:train?{SMALL}&images=600", f"textures:test?{SMALL}&images=90", 4)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise DataError("cifar10 cannot be downloaded")

    monkeypatch.setattr(demo, "install", refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "TEXTURES", IMAGES)
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "BUDGET", 0.0)
    for _ in range(2):  # again over what it left
        assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    out, said = capsys.readouterr()
    assert "cifar10 cannot be downloaded; the demo takes images of the paper's toy model instead" in said
    assert all(f"{number}. " in out for number in (1, 2, 3))
    folder = tmp_path / "demo" / "textures"
    for picture in (folder / "tokens.png", folder / "clustermim" / "reconstructions.png"):
        with Image.open(picture) as opened:
            assert min(opened.size) > 500
    for method in ("untrained", "mae", "clustermim"):
        measured = json.loads((folder / method / "probe" / "summary.json").read_text())["results"]["avg"]["accuracy"]
        assert f"{100 * measured:.1f} %" in out
    assert (tmp_path / "demo" / "report.html").exists()
    assert out.rstrip().endswith(demo.NEXT)


@pytest.mark.usefixtures("offline")
def test_photographs_where_they_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo.find_images() is demo.TEXTURES
    monkeypatch.setattr(demo, "install", lambda *given: None)
    assert demo.find_images() is demo.PHOTOGRAPHS
