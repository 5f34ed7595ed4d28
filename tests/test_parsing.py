"""From words to function calls, and what a wrong word gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from clustermim.cli import main
from clustermim.cli.help import FILE, make_help
from clustermim.errors import ConfigError, did_you_mean
from clustermim.parsing import find, normalise, options_of
from clustermim.stage_table import OLD_STAGES, STAGES, Stage, hint

CALLS: list[dict[str, Any]] = []


def paint(
    place: str, color: Literal["red", "green"] = "red", brush_size: int = 3, wet: bool = False, share: float = 0.5
) -> None:
    """Paint a place.

    Args:
        place: what to paint.
        color: in which color.
        brush_size: how wide.
        wet: whether it is wet.
        share: how much of it.
    """
    CALLS.append({"place": place, "color": color, "brush_size": brush_size, "wet": wet, "share": share})


PAINT = Stage(f"{__name__}:paint", "paint", ("place",))


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def paint_with(*words: str) -> dict[str, Any]:
    call("paint", PAINT, words)
    return CALLS[-1]


def call(name: str, stage: Stage, words: Sequence[str]) -> None:
    stage.load()(**options_of(name, stage, words))


def test_options() -> None:
    default = {"place": "wall", "color": "red", "brush_size": 3, "wet": False, "share": 0.5}
    assert paint_with("wall") == default
    assert paint_with("--brush-size", "5", "wall") == {**default, "brush_size": 5}
    assert paint_with("wall", "--brush_size=5", "--wet") == {**default, "brush_size": 5, "wet": True}
    assert paint_with("wall", "--wet", "false", "--share", "1") == {**default, "share": 1.0}
    assert paint_with("wall", "--wet", "--color", "green") == {**default, "wet": True, "color": "green"}


def test_configuration_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "paint.yaml"
    file.write_text("place: door\nbrush_size: 9\n")
    assert paint_with("--config", str(file))["brush_size"] == 9
    assert paint_with("--config", str(file), "--brush-size", "4")["brush_size"] == 4
    with pytest.raises(SystemExit) as end:
        paint_with("wall", "--brush-size", "8", "--print_config")
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "brush_size: 8" in printed
    file.write_text(printed)
    assert paint_with("--config", str(file)) == {**CALLS[0], "place": "wall", "brush_size": 8}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wall", "--brush-sise", "3"], "there is no option --brush-sise; did you mean --brush-size?"),
        (["wall", "--zzz"], "there is no option --zzz; there are: --place, --color, --brush-size, --wet"),
        (["wall", "--brush-size", "x"], "--brush-size: expected int, got x"),
        (["wall", "--color", "blue"], "--color: expected one of 'red', 'green', got blue"),
        ([], "missing: place"),
        (["wall", "door"], "unrecognized arguments: door"),
        (["wall", "--brush-size"], "expected one argument"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        paint_with(*words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not CALLS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("brush_sise: 3\n", "the configuration has no key 'brush_sise'; did you mean brush_size?"),
        ("brush_size: [1\n", ""),
        ("brush_size: thick\n", "--brush-size: expected int, got thick"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "paint.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        paint_with("wall", "--config", str(file))
    assert message in str(error.value)
    with pytest.raises(ConfigError, match="nowhere"):
        paint_with("wall", "--config", str(tmp_path / "nowhere.yaml"))


def test_find() -> None:
    stages = {"house paint": PAINT, "house roof": PAINT, "paint": PAINT}
    assert find(stages, ["house", "paint", "wall", "--wet"]) == ("house paint", PAINT, ["wall", "--wet"])
    assert find(stages, ["house", "--help"]) == ("house", None, ["--help"])
    assert find(stages, []) == ("", None, [])
    with pytest.raises(ConfigError, match=r"there is no command 'clustermim hose'; did you mean house\?"):
        find(stages, ["hose"])
    with pytest.raises(ConfigError, match="'clustermim house burn'; there are: paint, roof"):
        find(stages, ["house", "burn"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tcas", "x"], "there is no command 'clustermim tcas'; it is score now"),
        (["theory", "audit"], "it is `python -m paper.audit` in a clone of the repository now"),
        (["pretrain", "--mask-unit", "2"], "there is no option --mask-unit; it is --mask-patch-size now"),
        (["pretrain", "--tokens_once"], "there is no option --tokens-once; it is --cache-tokens now"),
        (["fit", "kmeans", "--context", "1"], "there is no option --context; it is --image-mean-weight now"),
        (["fit", "vq", "--revive", "1"], "there is no option --revive; it is --dead-code-threshold now"),
        (
            ["iterate", "--data", "digits", "--out", "x", "--choose", "promise"],
            "cannot be chosen by 'promise'; it is transferability now",
        ),
    ],
)
def test_old_names_are_told_the_new_one(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_an_old_key_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("mask_unit: 2\n")
    assert main(["pretrain", "--config", str(tmp_path / "a.yaml")]) == 2
    assert "the configuration has no key 'mask_unit'; it is mask_patch_size now" in capsys.readouterr().err
    (tmp_path / "b.yaml").write_text("stages: [{name: a, stage: tcas, options: {data: d}}]\n")
    assert main(["study", str(tmp_path / "b.yaml")]) == 2
    assert "there is no stage 'tcas'; it is score now" in capsys.readouterr().err
    assert all(new in STAGES or "python -m" in new for new in OLD_STAGES.values())
    assert hint("kk", ["k", "out"]) == "; did you mean k?"


def test_normalise_leaves_values_alone() -> None:
    assert normalise(["--t", "a", "--t=b", "--t", "[c]"], ["t"], (), ["t"]) == ["--t+", "a", "--t+=b", "--t", "[c]"]
    assert normalise(["a-b", "--x-y=c-d", "--x-y", "-5", "--"], ["x_y"], ()) == [
        "a-b",
        "--x_y=c-d",
        "--x_y",
        "-5",
        "--",
    ]
    assert did_you_mean("kk", ["k", "out"]) == "; did you mean k?"


@pytest.mark.parametrize("name", STAGES)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: clustermim {name}" in text
    assert "--config" in text
    options = [line for line in text.splitlines() if line.startswith("  --")]
    assert not [line for line in options if "_" in line.split()[0] and "print_config" not in line]


def test_the_kept_explanations_are_those_of_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by `python -m clustermim.cli.help`."""
    monkeypatch.setenv("COLUMNS", "")
    assert json.loads(FILE.read_text(encoding="utf-8")) == make_help()


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, clustermim.cli as cli; cli.main(['pretrain', '--help']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_list_takes_items_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(place: str, pictures: list[Literal["cat", "dog"]] | None = None) -> None:
        """Hang pictures.

        Args:
            place: where.
            pictures: which.
        """
        CALLS.append({"pictures": pictures})

    monkeypatch.setattr(sys.modules[__name__], "hang", hang, raising=False)
    command = Stage(f"{__name__}:hang", "hang pictures", ("place",))
    for words, pictures in (
        ([], None),
        (["--pictures", "cat"], ["cat"]),
        (["--pictures", "cat", "--pictures=dog"], ["cat", "dog"]),
        (["--pictures", "[dog, cat]"], ["dog", "cat"]),
    ):
        call("hang", command, ["wall", *words])
        assert CALLS.pop() == {"pictures": pictures}
    with pytest.raises(ConfigError, match="--pictures: expected one of 'cat', 'dog', got cow"):
        call("hang", command, ["wall", "--pictures", "cow"])


def frame(places: str | list[str], out: str) -> None:
    """Frame some places."""
    CALLS.append({"places": places, "out": out})


def test_a_list_is_several_words_in_a_row() -> None:
    command = Stage(f"{__name__}:frame", "frame", ("places",))
    for words in (["a b", "[c]", "--out", "x"], ["--out", "x", "a b", "[c]"]):
        call("frame", command, words)
        assert CALLS.pop() == {"places": ["a b", "[c]"], "out": "x"}
    with pytest.raises(ConfigError, match="missing: places"):
        call("frame", command, ["--out", "x"])


def test_slow_packages_are_imported_when_they_work() -> None:
    """Help, and a mistake in an option, should not wait for packages that the work needs later."""
    program = """
import sys
import clustermim
assert "torch" not in sys.modules
from clustermim.stage_table import STAGES
for name, stage in STAGES.items():
    if name not in ("show", "report", "demo"):  # which draw
        stage.load()
slow = "lightning_fabric jinja2 matplotlib sklearn transformers kornia rich scipy.stats scipy.sparse"
print([name for name in slow.split() if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
