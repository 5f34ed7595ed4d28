"""Tables in a real browser: saved as files, with cues where they go on, and commands to copy."""

from __future__ import annotations

import csv
import io
import re
import shlex
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from toy_runs import NASTY
from visiting import Visit


def saved(page: Page, section: str, kind: str) -> str:
    """The file that a button below a table saves."""
    with page.expect_download() as download:
        page.locator(f'#{section} button[data-save="{kind}"]').first.click()
    assert download.value.suggested_filename.endswith(f".{kind}")
    return Path(download.value.path()).read_text(encoding="utf-8-sig")


def test_tables_are_saved_as_csv(visit: Visit) -> None:
    head, *rows = csv.reader(io.StringIO(saved(visit.page, "encoders", "csv")))
    assert head[:5] == ["run", "predicts", "linear probe", "linear probe low", "linear probe high"]
    by_name = {row[0].split(" (")[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert len(by_name) == len(rows) == 6
    assert float(by_name["run-1"]["linear probe"]) == pytest.approx(56)
    assert float(by_name["run-1"]["linear probe low"]) == pytest.approx(51)
    assert by_name["run-1"]["fine-tuned"] == ""
    shown = [row[0].split(" (")[0] for row in rows]
    visit.page.locator("#encoders thead th").first.get_by_role("button").click()
    again = [row[0].split(" (")[0] for row in csv.reader(io.StringIO(saved(visit.page, "encoders", "csv")))][1:]
    assert again != shown  # as it is sorted
    assert sorted(again) == sorted(shown)
    names = [row[0] for row in csv.reader(io.StringIO(saved(visit.page, "tokenizers", "csv")))]
    assert any(name.startswith(NASTY) for name in names)
    commands = [row[-1] for row in csv.reader(io.StringIO(saved(visit.page, "runs", "csv")))]
    assert commands[0] == "command"
    assert any(shlex.split(command)[:3] == ["clustermim", "fit", "kmeans"] for command in commands)


def test_tables_are_saved_as_latex(visit: Visit) -> None:
    text = saved(visit.page, "tokenizers", "tex")
    lines = text.splitlines()
    assert lines[0].startswith("\\begin{tabular}{llrr")
    assert (lines[1], lines[3], lines[-2:]) == ("\\toprule", "\\midrule", ["\\bottomrule", "\\end{tabular}"])
    assert all(line.endswith(" \\\\") for line in (lines[2], *lines[4:-2]))
    columns = {len(re.split(r"(?<!\\)&", line)) for line in (lines[2], *lines[4:-2])}
    assert len(columns) == 1
    assert "view\\_retrieval" in lines[2]
    assert r"\textless{}img src=x onerror=alert(1)\textgreater{} \"two\" \& 'one'" in text.replace('"', '\\"')
    assert not re.search(r"(?<!\\)[#%]", text)
    assert "command" not in saved(visit.page, "runs", "tex")


def test_a_cell_is_no_formula_and_no_command(visit: Visit) -> None:
    table = """names => {
        const rows = names.map(name => make("tr", {}, make("th", { textContent: name })));
        const head = make("th");
        head.dataset.name = "a_b";
        const table = make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, ...rows));
        return [toCsv(table), toTex(table)]; }"""
    names = ["=1+1", "-x", "@a", 'say "a, b"', "a\nb", r"\input{x} $y$ 50% #1 a_b ~ ^ {&}"]
    text, tex = visit.page.evaluate(table, names)
    assert [row for (row,) in csv.reader(io.StringIO(text))] == ["a_b", "'=1+1", "'-x", "'@a", *names[3:]]
    escaped = r"\textbackslash{}input\{x\} \$y\$ 50\% \#1 a\_b \textasciitilde{} \textasciicircum{} \{\&\} \\"
    assert escaped in tex.splitlines()


def test_wide_tables_say_so_and_commands_are_copied(browser: Browser, address: str) -> None:
    visit = Visit(
        browser, address, viewport={"width": 700, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    frame = visit.page.locator("#tokenizers .scroller")
    assert (frame.get_attribute("class") or "").split() == ["scroller", "right"]
    assert frame.locator(".cue").is_visible()
    frame.locator(".table").evaluate("table => { table.scrollLeft = table.scrollWidth; }")
    expect(frame).to_have_class("scroller left")  # waits; a function in the page would be forbidden by its policy
    button = visit.page.locator("#answer .copy")
    button.click()
    expect(button).to_have_text("Copied")
    words = shlex.split(visit.page.evaluate("navigator.clipboard.readText()"))
    assert words[:2] == ["clustermim", "pretrain"]
    assert visit.said == []
    visit.context.close()
