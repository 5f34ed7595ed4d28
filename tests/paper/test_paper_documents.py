"""The documents say what the code and the records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clustermim.studies import read_study
from clustermim.studies.records import read_record
from clustermim.studies.table import make_rows
from paper.audit import audit
from paper.render import audit_markdown


def test_audit_document_is_current() -> None:
    document = Path(__file__).parents[2] / "docs" / "audit.md"
    assert document.read_text(encoding="utf-8") == audit_markdown(audit())


def test_what_the_document_says_of_textures() -> None:
    """The claims of "The theory meets pixels" follow from the committed record."""
    root = Path(__file__).parents[2]
    study = read_study(root / "studies" / "textures-theory.yaml")
    rows = make_rows(study, read_record(root / "results" / "textures-theory.json", study))
    value = {(row.name, name): found.mean for row in rows for name in row.values if (found := row.estimate(name))}

    def of(overlap: str, tokens: str, column: str) -> float:
        (found,) = [number for (row, name), number in value.items() if (name, overlap, tokens) == (column, *key(row))]
        return found

    def key(row: str) -> tuple[str, str]:
        known = ("pixels", "k-means", "prototypes", "pattern", "each class", "across")
        return row.partition(":")[0], next(word for word in known if word in row)

    def critical(overlap: str, less: str, more: str) -> float:
        """Above this r the bound prefers the tokens of larger Σλ² and smaller α."""
        rise = of(overlap, more, "Σλ², exact") - of(overlap, less, "Σλ², exact")
        return rise / (of(overlap, less, "α, exact") - of(overlap, more, "α, exact"))

    assert critical("t = 0", "across", "prototypes") == pytest.approx(4)
    assert critical("t = 1/6", "each class", "prototypes") == pytest.approx(4.44, abs=0.01)
    assert critical("t = 1/3", "each class", "prototypes") == pytest.approx(1.78, abs=0.01)
    for overlap, ahead, pixels in (("t = 0", 3.9, 35.2), ("t = 1/6", 3.9, 31.6), ("t = 1/3", 8.0, 23.5)):
        prototypes = of(overlap, "prototypes", "linear probe")
        assert of(overlap, "pattern", "linear probe") - prototypes == pytest.approx(ahead, abs=0.05)
        assert prototypes - of(overlap, "pixels", "linear probe") == pytest.approx(pixels, abs=0.05)
        for tokens in ("prototypes", "pattern", "each class", "across"):
            exact, found = of(overlap, tokens, "Σλ², exact"), of(overlap, tokens, "Σλ², measured")
            assert found == pytest.approx(exact, rel=0.03)
            assert of(overlap, tokens, "α, measured") == pytest.approx(of(overlap, tokens, "α, exact"), abs=0.011)


def test_references_to_the_theory_have_a_section() -> None:
    """Every link to an anchor of that page finds a heading."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "theory.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    files = [
        path
        for folder in ("src", "tests", "docs", "paper")
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".md")
    ]
    found = {
        (path.name, anchor)
        for path in files
        for anchor in re.findall(r"theory\.md#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert len(found) > 5
    assert [(name, anchor) for name, anchor in found if anchor not in anchors] == []
