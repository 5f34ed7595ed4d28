"""What the front page promises to be, and pages that are made from something else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import clustermim as cm
from clustermim.studies.presets import presets
from studies.zoo import document

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    """Everything counts: code, tables and comments."""
    assert len(README.split()) <= 900


def test_the_method_zoo_is_current() -> None:
    """Written by `python -m studies.zoo`, never by hand."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert page == document(ROOT / "results")
    assert all(f"clustermim run {name}\n" in page for name in presets())


def test_the_zoo_shows_what_records_hold(tmp_path: Path) -> None:
    assert "| [MAE](#mae) | – | – | – | – | – |" in document(tmp_path)
    row = next(line for line in document(ROOT / "results").splitlines() if line.startswith("| [MaskFeat (HOG)]"))
    kept = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")  # which is current
    assert f"| MaskFeat (HOG) | {row.split(' | ')[1]} | {row.split(' | ')[2]} |" in kept


def test_the_page_of_the_interface_has_every_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: clustermim\.(\w+)$", page, re.M)) == sorted(cm.__all__)


def test_the_citation_is_of_this_version() -> None:
    record = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert record["version"] == cm.__version__
    assert record["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= record.keys()
    (paper,) = record["references"]
    assert (paper["title"], paper["year"]) == (
        "On the Role of Discrete Tokenization in Visual Representation Learning",
        2024,
    )
    assert [author["family-names"] for author in paper["authors"]] == ["Du", "Wang", "Wang"]
