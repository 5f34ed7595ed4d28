"""The Tab key: what a real bash offers after some words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clustermim.cli import main
from clustermim.stage_table import STAGES

ASK = """
source {script}
COMP_WORDS=(clustermim {words} "{begun}")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_clustermim
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion"
    path.write_text(capsys.readouterr().out)
    return path


def offered(script: Path, words: str, begun: str = "") -> list[str]:
    program = ASK.format(script=script, words=words, begun=begun)
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_commands_options_and_values(script: Path) -> None:
    assert set(offered(script, "")) == {name.split()[0] for name in STAGES}
    assert offered(script, "", "pre") == ["pretrain"]
    assert "random-projection" in offered(script, "fit")
    assert offered(script, "fit kmeans", "--pa") == ["--patch-size"]
    assert offered(script, "fit kmeans --k 5 --out x", "--spa") == ["--space"]
    assert offered(script, "fit kmeans --space", "pixel-") == ["pixel-norm", "pixel-white"]
    assert offered(script, "export run --to") == ["timm", "transformers"]
    assert "--trust-code" in offered(script, "score tokens --data digits", "--")


@pytest.mark.parametrize("words", ["score", "fit kmeans --data", "probe run --data x", "fit kmeans"])
def test_files_are_left_to_the_shell(words: str, script: Path) -> None:
    assert offered(script, words) == []


def test_zsh_reads_the_same_script(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert "bashcompinit" in first
    assert rest == script.read_text()
