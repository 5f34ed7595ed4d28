"""Every shell and Python block of README and docs does what it says, at small size."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from block_runner import PAGES, ROOT, Block, blocks, commands, make_world, run_page


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what every page takes for granted; toy images have the name of CIFAR-10."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERMIM_HOME", str(folder / "home"))
        make_world(folder, patch)
        yield folder


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_a_page_exists(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, text_of(page), monkeypatch, parse_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(text_of(page)))])
def test_the_blocks_of_a_page_run(page: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(world, tmp_path / "clone", symlinks=True)
    monkeypatch.chdir(folder)
    assert run_page(page, text_of(page), monkeypatch, parse_only=False) > 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "clustermim pretrain --data digits --epoch 3 --out x",
            "page:1: clustermim pretrain .* no option --epoch; did",
        ),
        ("clustermim pretend --data digits", "there is no command 'clustermim pretend'"),
        ("clustermim probe runs/x --data digits", "missing: test_data"),
        ("torchrun --nproc-per-node=8 -m clustermim pretrain --data digits --layers 3 --out x", "no option --layers"),
        ("make tests", "the Makefile has no"),
        ("python -m studies.nothing", "there is no module studies.nothing"),
        ("pip install '.[everything]'", "there are no extras"),
        ("clustermin demo", "what is clustermin"),
    ],
)
def test_a_wrong_command_is_found(line: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=said):
        run_page("page", f"```shell\n{line}\n```", monkeypatch, parse_only=True)


def test_a_command_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = "\n```shell\nclustermim probe runs/x --data digits/train --test-data digits/test\n```"
    with pytest.raises(AssertionError, match=r"page:2: clustermim probe runs/x .*runs/x"):
        run_page("page", page, monkeypatch, parse_only=False)
    with pytest.raises(AssertionError, match="no such thing"):
        run_page("page", "```python\nassert False, 'no such thing'\n```", monkeypatch, parse_only=False)
    page = f"<!-- blocks: parsed -->\n\n{page}"
    assert run_page("page", page, monkeypatch, parse_only=False) == 1


def test_blocks_of_a_page() -> None:
    page = (
        "# A\n\n```python\nx\n```\n\n    clustermim demo\n\n```\nfree text\n```\n- a\n    b\n\n```text\nmake x\n```\n"
    )
    assert list(blocks(page)) == [Block("python", "x", 3, False), Block("shell", "clustermim demo", 7, False)]
    assert list(commands("a b \\\n  c && d  # e\nX=1 f 'g h'")) == [["a", "b", "c"], ["d"], ["f", "g h"]]
    assert list(commands('x="a b" y=2\nf "$x" $y $z')) == [["f", "a b", "2", "$z"]]
