"""The documentation site: it builds without a warning, needs nothing from elsewhere, and shows what pages mean."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a missing page, a broken link or a page without a place in `nav` fails."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in site.glob("*.html")}


@pytest.mark.slow
def test_every_page_is_there(pages: dict[str, str]) -> None:
    assert {path.stem for path in ROOT.glob("docs/*.md")} <= pages.keys()
    assert "What tokens buy" in pages["index"]  # the README
    assert {"contributing", "security", "changelog", "studies"} <= pages.keys()


@pytest.mark.slow
def test_pages_show_what_they_mean(pages: dict[str, str]) -> None:
    """GitHub's Markdown and Python's differ in what begins a list or a table."""
    for name, page in pages.items():
        raw = re.findall(r"<p>\|.{0,60}|<p>[^<]*\n[-*] .{0,60}|<p>```.{0,60}|<p>[^<]*\n\d\. .{0,60}", page)
        assert raw == [], name
    assert pages["theory"].count("<math") > 100
    assert "\\(" not in pages["theory"]
    assert "watch_every" in pages["api"]  # an option of pretrain, from a dataclass of another module
    assert "schedule:" not in pages["api"]
    assert "class 'clustermim" not in pages["api"]


@pytest.mark.slow
def test_the_site_needs_nothing_from_elsewhere(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        assert re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"', page) == [], name


@pytest.mark.slow
def test_files_that_pages_link_to_come_along(site: Path) -> None:
    assert (site / "files" / "examples" / "own_tokenizer.py").read_bytes() == (
        ROOT / "examples" / "own_tokenizer.py"
    ).read_bytes()
    assert not list(site.glob("*.py"))
