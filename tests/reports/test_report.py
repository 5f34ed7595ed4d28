"""The report through its command: one page that holds everything, escapes it, and refuses what it cannot do."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_runs import CLASSES, NASTY, everything, fit, fit_large, measured, pretrained

from clustermim.cli import main
from clustermim.reports.numbers import fixed
from clustermim.reports.page import _environment, report
from clustermim.reports.page import report as page_of_runs
from clustermim.reports.pictures import INK_BYTES, PHOTOGRAPH_BYTES


class Reader(HTMLParser):
    """What a browser would see: elements with attributes, text, and the content of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        inside = self.elements[-1][0] if self.elements else ""
        (self.scripts if inside == "script" else self.text).append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = everything(tmp_path_factory.mktemp("runs") / "all")
    report([str(folder)], str(folder.parent / "report.html"), trust_runs=True)
    return (folder.parent / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a report that must fail with one line and exit code 2, and write nothing."""

    def call(*words: str | Path) -> str:
        capsys.readouterr()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.html")}
        assert main(["report", *map(str, words)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.html")} == before
        return line

    return call


def test_the_page_has_every_part(page: str) -> None:
    parts = {attributes.get("id") for _, attributes in Reader(page).elements}
    assert {"answer", "encoders", "tokenizers", "scores", "explorer", "training", "runs"} <= parts
    assert "Pearson r = <b>" in page
    assert "over <b>4</b> tokenizers" in page
    assert "90.0" in page  # the fine-tuned accuracy
    assert "85.0 … 95.0" in page


def test_it_needs_nothing_else(page: str) -> None:
    for tag, attributes in Reader(page).elements:
        assert tag not in ("link", "iframe", "object", "base")
        for name in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/webp;base64,")), (tag, name, value[:80])
    css = page.split("<style>")[1].split("</style>")[0]
    assert "url(" not in css
    assert "@import" not in css
    assert "default-src 'none'" in page


def test_names_from_outside_are_only_text(page: str) -> None:
    reader = Reader(page)
    assert all("onerror" not in attributes for _, attributes in reader.elements)
    assert not any(tag == "img" and attributes.get("src") == "x" for tag, attributes in reader.elements)
    assert any(NASTY in text for text in reader.text)
    assert html.escape(NASTY, quote=False) in page.replace("&#34;", '"').replace("&#39;", "'")
    data = [json.loads(text) for text in reader.scripts if text.startswith('{"')]
    (nasty,) = [entry for entry in data if entry.get("title") == NASTY]
    assert nasty["classes"] == CLASSES
    assert "\u2028" not in page
    runs = [text for text in reader.scripts if text.strip() and not text.startswith('{"')]
    assert len(runs) == 1  # our own script alone
    assert "alert(1)" not in runs[0]


def test_json_is_safe_inside_a_script() -> None:
    nasty = {"</script>": ["<!--", "\u2028\u2029", "&amp;", "\udcff"]}
    text = _environment().from_string("{{ value|tojson }}").render(value=nasty)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert text.isascii()
    assert json.loads(text) == nasty


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path / "km", 4)
    for name in ("one.html", "two.html"):
        assert main(["report", str(tmp_path / "km"), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    out = capsys.readouterr().out
    assert re.search(rf"{re.escape(str(tmp_path / 'one.html'))} +1 +0 +0\.", out)


def test_from_python_it_returns_what_it_wrote_and_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path / "runs" / "km", 4)
    pretrained(tmp_path / "runs" / "good")
    (pretrained(tmp_path / "runs" / "stopped") / "summary.json").unlink()
    capsys.readouterr()
    written = page_of_runs(tmp_path / "runs", tmp_path / "r.html", images=8)
    assert capsys.readouterr().out == ""
    assert (written.path, written.tokenizers, written.encoders) == (tmp_path / "r.html", 1, 1)
    assert written.size == len(written.path.read_bytes())
    (line,) = written.left_out
    assert "stopped is incomplete" in line
    assert str(written.path) in str(written)


def test_what_is_left_out_is_told_on_the_page_and_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrained(tmp_path / "runs" / "good")
    (pretrained(tmp_path / "runs" / "<b>stopped") / "summary.json").unlink()
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert "<b>stopped is incomplete" in line
    page = (tmp_path / "r.html").read_text()
    assert "&lt;b&gt;stopped is incomplete" in page
    assert "<b>stopped" not in page


def test_a_name_that_is_no_unicode(tmp_path: Path) -> None:
    pretrained(tmp_path / "bad\udcff")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 0
    assert "bad\\udcff" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_bad_input_gets_one_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    out = ("--out", tmp_path / "r.html")
    (tmp_path / "empty").mkdir()
    assert "is not a folder" in refused(tmp_path / "absent", *out)
    assert "there is no run folder in" in refused(tmp_path / "empty", *out)
    run = pretrained(tmp_path / "run")
    assert "must end in .html" in refused(run, "--out", tmp_path / "r.pdf")
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in refused(run, "--out", tmp_path / "folder.html")
    assert "--images 0 is too small" in refused(run, *out, "--images", "0")
    assert "cannot write" in refused(run, "--out", tmp_path / "run" / "config.yaml" / "r.html")
    measured(tmp_path / "alone", "gone")
    assert "only probe: name theirs too" in refused(tmp_path / "alone", *out)
    assert "missing: out" in refused(run)
    (run / "summary.json").unlink()
    assert "incomplete" in refused(run, *out)


def test_an_older_page_is_kept_unless_asked(tmp_path: Path, refused: Callable[..., str]) -> None:
    run = pretrained(tmp_path / "run")
    page = tmp_path / "r.html"
    page.write_text("older")
    assert "exists; choose another --out, or replace it with --overwrite" in refused(run, "--out", page)
    assert page.read_text() == "older"
    assert main(["report", str(run), "--out", str(page), "--overwrite"]) == 0
    assert page.read_text().lstrip().startswith("<!doctype html>")


@pytest.mark.slow
def test_twenty_large_codebooks_fit_on_a_page(tmp_path: Path) -> None:
    """The worst case: 1000 tokens each, of noise, which no encoding makes small."""
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 64, 64), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(20))
    for seed in range(20):
        fit_large(tmp_path / "runs" / f"k{seed}", 1000, 8, f"npz:{tmp_path}/noise.npz?layout=nchw", seed)
    report(str(tmp_path / "runs"), str(tmp_path / "r.html"), trust_runs=True)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    data = [json.loads(text) for text in Reader(page).scripts if text.startswith('{"title')]
    assert [len(entry["tokens"]) for entry in data] == [1000] * 20
    room = 20 * (PHOTOGRAPH_BYTES + INK_BYTES) * 4 / 3 + 500_000  # what reconstructions and charts may add
    assert 1_000_000 < len(page) < 10_000_000 - room


def test_reconstructions_are_shown_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 1500, 3), dtype=np.uint8)
    Image.fromarray(noise).save(pretrained(tmp_path / "run") / "reconstructions.png")
    (pretrained(tmp_path / "damaged") / "reconstructions.png").write_bytes(b"no picture")
    report(str(tmp_path), str(tmp_path / "r.html"))
    pictures = [attributes for tag, attributes in Reader((tmp_path / "r.html").read_text()).elements if tag == "img"]
    (picture,) = pictures
    assert len(picture["src"] or "") < 4 / 3 * PHOTOGRAPH_BYTES + 100
    assert (picture["width"], picture["height"]) == ("1000", "400")


def test_small_words() -> None:
    assert [fixed(-0.0004, 3), fixed(-0.52), fixed(10, 0)] == ["0.000", "−0.52", "10"]
