"""The demo runs, on embedded data alone, and says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from clustermim.cli import demo, main


@pytest.mark.slow
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    data = "textures:?images=300&grid=4&noise=0.05&jitter=0"
    monkeypatch.setitem(demo.SETTINGS, "textures", (data, data, 8, (5, 20, 500)))
    monkeypatch.setattr(demo, "EPOCHS", 1)
    for _ in range(2):  # again over what it left
        assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr().out
    assert all(f"{number}. " in out for number in (1, 2, 3))
    for data in ("textures", "digits"):
        with Image.open(tmp_path / "demo" / f"{data}.png") as picture:
            assert min(picture.size) > 500
        for tokenizer in ("random", "labels", f"kmeans-{demo.SETTINGS[data][3][2]}"):
            (summary,) = (tmp_path / "demo" / data / tokenizer).glob("score-*/summary.json")
            assert json.loads(summary.read_text())["stage"] == "score"
            assert f"{data}/{tokenizer}" in out
    assert "MAE (pixels)" in out
    assert "ClusterMIM (tokens)" in out
    for method in demo.METHODS:
        run = tmp_path / "demo" / "digits" / method
        assert (run / "reconstructions.png").exists()
        measured = json.loads((run / "probe" / "summary.json").read_text())["results"]["avg"]["accuracy"]
        assert f"{100 * measured:.2f} %" in out
