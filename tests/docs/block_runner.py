"""Shell and Python blocks of a page, run as they stand on small things.

A command is parsed as a user's, so that every option must exist; then its sizes are made small. `cifar10/train` is a
few toy images, a folder of images is made where it is not there, runs that pages take for granted are there. A comment
before a block, which nobody sees, says that it can only be parsed, since it needs a network, a GPU or a cluster:

    <!-- blocks: parsed -->
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from clustermim import cli
from clustermim.data.arrays import ArraySource
from clustermim.data.spec import OPENERS, Opener, Spec

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "studies/README.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
LANGUAGES = {"shell": "shell", "bash": "shell", "sh": "shell", "console": "shell", "python": "python", "py": "python"}
FENCE = re.compile(r"```\s*(\w*)")
PARSED = "<!-- blocks: parsed -->"
PROGRAMS = ("clustermim", "torchrun", "python", "make", "pip", "git", "cd", "export")

Call = Callable[[str, Any, dict[str, Any]], None]

# An option is at most this; what is less, stays. Others are replaced.
MOST: dict[str, float] = {
    "epochs": 1, "rounds": 2, "k": 8, "first_k": 8, "batch_size": 32, "budget": 0, "images": 64, "max_images": 32,
    "permutations": 2, "max_patches": 4096, "width": 16, "iterations": 3,
}  # fmt: skip
INSTEAD = {"model": "micro", "ks": [8], "layers": [2], "overwrite": True, "resume": False}
PLAN = {"dry_run": True, "table": False, "results": None, "records": None}  # a study is only looked at
ONLY_PARSED = ("demo", "data get", "fit external")  # these need a network, or minutes


class Block(NamedTuple):
    """A block of code: its language, its text, the line it begins at, and whether it is only to be parsed."""

    language: str
    text: str
    line: int
    parsed: bool


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page in shell or Python, fenced or indented by four."""
    lines = page.splitlines()
    place = 0
    while place < len(lines):
        begin, fence = place, FENCE.match(lines[place])
        indented = lines[place].startswith("    ") and not "".join(lines[place - 1 : place]).strip()
        place += 1
        if not fence and not indented:
            continue
        while place < len(lines) and (lines[place] != "```" if fence else lines[place].startswith("    ")):
            place += 1
        body = lines[begin + 1 : place] if fence else [line[4:] for line in lines[begin:place]]
        place += bool(fence)
        named = LANGUAGES.get(fence[1] if fence else "", "")
        if not named and not (fence and fence[1]) and "".join(body[:1]).split(" ")[0] in PROGRAMS:
            named = "shell"
        if named:
            before = next((line for line in reversed(lines[:begin]) if line.strip()), "")
            yield Block(named, "\n".join(body), begin + 1, PARSED in before)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell block, with the variables that it sets."""
    known: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"\$(\w+)", lambda found: known.get(found[1], found[0]), line.removeprefix("$ "))
        words = shlex.split(line, comments=True)
        while words:
            end = next((place for place, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
            found, words = words[:end], words[end + 1 :]
            while found and (setting := re.fullmatch(r"(\w+)=(.*)", found[0])):
                known[setting[1]] = setting[2]
                found.pop(0)
            if found:
                yield found


def run_page(name: str, text: str, patch: pytest.MonkeyPatch, *, parse_only: bool) -> int:
    """Run or parse the blocks of a page in the current folder; an AssertionError says which command failed, and why."""
    space: dict[str, Any] = {"__name__": "page"}
    count = 0
    for block in blocks(text):
        where, parsed = f"{name}:{block.line}", parse_only or block.parsed
        if block.language == "shell":
            for words in commands(block.text):
                run_command(where, words, patch, parse_only=parsed)
                count += 1
        else:
            code = compile(
                re.sub(r"\b(k|epochs)=\d+", lambda found: f"{found[1]}={SMALL[found[1]]}", block.text), where, "exec"
            )
            if not parsed:
                exec(code, space)  # noqa: S102
            count += 1
    return count


SMALL = {"k": 8, "epochs": 1}


def run_command(where: str, words: list[str], patch: pytest.MonkeyPatch, *, parse_only: bool) -> None:
    """Run a command of ours; of others, look whether what they name is there."""
    program, *rest = words
    assert program in PROGRAMS, f"{where}: what is {program}? Known are {', '.join(PROGRAMS)}"
    if program == "torchrun":
        assert "clustermim" in rest, f"{where}: torchrun runs clustermim with -m"
        program, rest, parse_only = "clustermim", rest[rest.index("clustermim") + 1 :], True
    if program == "clustermim":
        run_ours(where, rest, patch, parse_only=parse_only)
    elif program == "python" and rest[0] == "-m":
        assert rest[1] == "pip" or find_spec(rest[1]), f"{where}: there is no module {rest[1]}"
    elif program == "make":
        goals = [word for word in rest if "=" not in word]
        known = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert set(goals) <= set(known), f"{where}: the Makefile has no {goals}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        asked = {extra for found in re.findall(r"\[([\w,]+)\]", " ".join(rest)) for extra in found.split(",")}
        assert asked <= extras["optional-dependencies"].keys(), f"{where}: there are no extras {asked}"


def run_ours(where: str, words: list[str], patch: pytest.MonkeyPatch, *, parse_only: bool) -> None:
    """`clustermim …` in this process: parsed as it stands, then run with small sizes."""
    words = [re.sub(r"^folder:photos(?=\?|$)", "folder:photos/train", word) for word in words]
    if not parse_only:
        original: Call = cli.call
    failed: list[str] = []

    def call(name: str, stage: Any, options: dict[str, Any]) -> None:
        if not parse_only and name not in ONLY_PARSED and not options.get("predict"):
            original(name, stage, small(name, options))

    with patch.context() as local:
        local.setattr(cli, "call", call)
        local.setattr(cli, "fail", lambda message: failed.append(message) or 2)
        code = cli.main(words)
    assert code == 0, f"{where}: clustermim {shlex.join(words)}: {' '.join(failed)}"


def small(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a short run on small images, which replaces what was there."""
    changes: dict[str, Any] = {**INSTEAD, **PLAN}
    for option, value in options.items():
        if option in MOST and isinstance(value, int | float) and (name, option) != ("probe", "epochs"):
            changes[option] = min(value, MOST[option])
        elif isinstance(value, str):
            changes.setdefault(option, value.replace("size=224", "size=64"))
    return options | {option: value for option, value in changes.items() if option in options}


def open_toy(spec: Spec) -> ArraySource:
    """160 images of 32 pixels in the place of CIFAR-10's train images, 80 in that of its test images."""
    draw, count = np.random.default_rng(len(spec.split)), 160 if spec.split == "train" else 80
    labels = np.arange(count) % 4
    tints = draw.integers(0, 200, (4, 3, 1, 1))
    images = (tints[labels] + draw.integers(0, 56, (count, 3, 32, 32))).astype(np.uint8)
    return ArraySource(spec.text, images, labels, ["cat", "dog", "owl", "yak"])


def photographs(folder: Path, count: int) -> None:
    """Pictures of 64 pixels, of two classes."""
    draw = np.random.default_rng(count)
    for row in range(count):
        path = folder / ("cat", "dog")[row % 2] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 156, (8, 8, 3)) + 100 * (row % 2)
        Image.fromarray(pixels.astype(np.uint8)).resize((64, 64)).save(path)


def make_world(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """What every page takes for granted: images, a tokenizer, two runs and the files of a clone."""
    patch.setitem(OPENERS, "cifar10", Opener(open_toy, splits=True))
    patch.chdir(folder)
    for name in ("studies", "results"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "examples" / "own_tokenizer.py", folder)
    for name in ("train", "val"):
        photographs(folder / "photos" / name, 64)
        for path in (folder / "photos" / name).rglob("*.jpg"):
            mask = (folder / "masks" / name / path.relative_to(folder / "photos" / name)).with_suffix(".png")
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.tri(64, dtype=np.uint8)).save(mask)
    patch.setattr("clustermim.selection.advice.FEWEST", 8)  # images of each part of those that it scores on
    for command in (
        "fit kmeans --data cifar10/train --k 50 --patch-size 4 --out runs/km50",
        "pretrain --data cifar10/train --tokenizer runs/km50 --out runs/clustermim",
        "pretrain --data cifar10/train --target pixels --out runs/mae",
    ):
        run_ours("the runs of every page", command.split(), patch, parse_only=False)
