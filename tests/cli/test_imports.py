"""No command imports what it does not use: what a process has loaded after it did its work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clustermim.cli import main
from clustermim.data import open_source

HEAVY = (
    "sklearn pandas scipy.stats scipy.signal lightning_fabric kornia jinja2 matplotlib rich transformers torch._dynamo"
)
PROGRAM = """
import sys
from clustermim.cli import main
for words in sys.argv[2:]:
    assert main(words.split()) == 0, words
    print("LOADED", words.split()[0], *[name for name in sys.argv[1].split() if name in sys.modules])
"""


def loaded(*commands: str) -> list[str]:
    """Of each command, in one process, its first word and which heavy packages are there after it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, HEAVY, *commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("LOADED ") for line in done.stdout.splitlines() if line.startswith("LOADED ")]


def test_a_command_loads_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path / "home"))
    for split in ("train", "test"):
        open_source(f"digits/{split}")  # so that they are in the cache
    few = "--data digits/train?limit=64"
    tokenizer, encoder = f"{tmp_path}/tokenizer", f"{tmp_path}/encoder"
    training = f"pretrain {few} --patch-size 2 --target pixels --epochs 1 --batch-size 32 --device cpu --out"
    fit = f"fit kmeans {few} --k 4 --patch-size 2 --out"
    assert main(f"{training} {encoder}".split()) == 0
    assert main(f"{fit} {tokenizer}".split()) == 0
    assert loaded(
        "doctor",
        f"tokenize {tokenizer} {few} --out {tmp_path}/ids.npy",
        f"score {tokenizer} {few}",
        f"knn {encoder} {few} --test-data digits/test?limit=32",
        f"show {tokenizer} {few} --out {tmp_path}/tokens.png",
        f"{fit} {tmp_path}/more",
    ) == ["doctor", "tokenize", "score", "knn", "show matplotlib", "fit matplotlib torch._dynamo"]
    # the picture needs matplotlib; torch's optimizers and its counter of operations import torch._dynamo
    assert loaded(f"{training} {tmp_path}/another") == ["pretrain lightning_fabric matplotlib torch._dynamo"]


def test_the_first_line_comes_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "nowhere", "--data", "digits"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "score: opening digits"
    assert lines[1].startswith("error: there is no tokenizer folder nowhere")
