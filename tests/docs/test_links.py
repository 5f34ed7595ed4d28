"""Links between the pages of the repository: the file is there, and so is the heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "studies" / "README.md"])
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(page: str) -> set[str]:
    """What can follow the # of a link: headings as GitHub and MkDocs name them, and ids."""
    found = set(re.findall(r'<a id="([^"]+)">', page))
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found |= {slug, *(f"{slug}-{number}" for number in range(1, 9) if slug in found)}
    return found


def broken_links(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(CODE.sub("", text)):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / place) if place else page
        if place and (not target.exists() or (target.is_dir() and not place.endswith("/"))):
            found.append(f"{link}: there is no such file")
        elif anchor and anchor not in anchors(text if target == page else target.read_text(encoding="utf-8")):
            found.append(f"{link}: the page has no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A, *B* and `c`\n\n<a id='x'></a>\n\n```\n# no heading\n```\n")
    page = "# Here\n\n[a](other.md#a-b-and-c) [b](#here) [c](https://example.invalid) `[d](code.md)`\n\n"
    assert broken_links(tmp_path / "page.md", page) == []
    page += "[e](nowhere.md) [f](other.md#no-heading) [g](#there)"
    said = ["nowhere.md: there is no such file", "other.md#no-heading: the page has no such heading"]
    assert broken_links(tmp_path / "page.md", page) == [*said, "#there: the page has no such heading"]
