"""What the site needs besides docs/: the front page, links that leave docs/, and formulas that need no script.

Pages are written to read well in the repository, with relative links. README.md is the front page of the site, and a
few pages elsewhere are pages of it too (`PAGES`). Any other file that a page links to is copied to `files/`.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "studies/README.md": "studies.md",
}
HOMES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(?<=\]\()([^()\s:#]+)(#[^()\s]*)?(?=\))")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere, and the files that pages link to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for file in list(files.documentation_pages()):
        for target, _ in LINK.findall(without_code(file.content_string)):
            place = place_of(file.src_uri, target)
            copy = f"files/{place}"
            if is_elsewhere(place) and (ROOT / place).is_file() and files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site."""

    def link(found: re.Match[str]) -> str:
        place, anchor = place_of(page.file.src_uri, found[1]), found[2] or ""
        if place in PAGES:
            target = PAGES[place]
        else:
            target = f"files/{place}" if is_elsewhere(place) else place.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + anchor

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("`") else LINK.sub(link, part) for part in parts)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def formula(found: re.Match[str]) -> str:
        return convert(html.unescape(found[3]).strip(), display="inline" if found[2] == "(" else "block")

    return FORMULA.sub(formula, content)


def place_of(page: str, target: str) -> str:
    """Where in the repository a link of a page of the site leads."""
    home = HOMES.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(home), target))


def is_elsewhere(place: str) -> bool:
    """Whether a file is no part of the site by itself."""
    return place not in PAGES and not place.startswith("docs/")


def without_code(markdown: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", markdown, flags=re.M | re.S)
