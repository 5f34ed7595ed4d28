"""Are the measured numbers of README and docs those of the records? `python -m studies.numbers` says which are not.

Every paragraph, table or list item with a decimal number names the records it is taken from: in its text
(`studies/NAME.yaml`, `results/benchmarks/NAME.json`, `results.md#NAME`), or in a comment before it, which nobody sees:

    <!-- numbers: NAME, NAME -->

`<!-- numbers: none -->` is for numbers that nobody measured, such as settings and bounds.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from clustermim.studies.description import read_study
from clustermim.studies.records import read_record
from studies.document import section

HERE = Path(__file__).parents[1]
GENERATED = ("audit", "methods", "performance", "results")  # from records or formulas, with tests of their own
OTHERS = ("architecture", "gpu", "scaling", "theory")  # tested elsewhere, or without measured accuracies
PAGES = ["README.md"]
PAGES += [f"docs/{path.name}" for path in sorted(HERE.glob("docs/*.md")) if path.stem not in (*GENERATED, *OTHERS)]
COMMENT = re.compile(r"<!-- numbers: (.*?) -->")
NAMED = re.compile(r"studies/([\w-]+)\.yaml|results/(?:benchmarks/)?([\w-]+)\.json|results\.md#([\w-]+)")
NUMBER = re.compile(r"(?<![\w.-])\d+\.\d+(?![\w.]*\w)")


def wrong_numbers(text: str, root: Path = HERE) -> Iterator[str]:
    """What is wrong with the numbers of a page, in sentences."""
    for block in re.split(r"\n\s*\n|\n(?=[-*] )", re.sub(r"^(```.*?^```| {4}.*?$)", "", text, flags=re.M | re.S)):
        asked = COMMENT.findall(block)
        names = {name.strip() for found in asked for name in found.split(",")}
        names |= {name for match in NAMED.findall(block) for name in match if name}
        shown = NUMBER.findall(re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", block))
        if not shown or "none" in names:
            continue
        first = " ".join(COMMENT.sub("", block).split())[:60]
        if not names:
            yield f"no record is named for {', '.join(shown)} in “{first}…”"
            continue
        known = [value for name in names for value in values_of(name, root)]
        for number in shown:
            decimals = len(number.partition(".")[2])
            if not any(f"{abs(value):.{decimals}f}" == number for value in known):
                yield f"{number} is in none of {', '.join(sorted(names))}: “{first}…”"


@cache
def values_of(name: str, root: Path = HERE) -> tuple[float, ...]:
    """All numbers of a record: of a benchmark, or of a study and the tables made of it, also in percent."""
    path = root / "results" / "benchmarks" / f"{name}.json"
    if path.exists():
        found, shown = list(leaves(json.loads(path.read_text(encoding="utf-8"))["results"])), ""
    else:
        study = read_study(root / "studies" / f"{name}.yaml")
        record = read_record(root / "results" / f"{name}.json", study)
        found = list(leaves([cell["results"] for cell in record["cells"]]))
        shown = section(study, record, root / "results")
    return (*found, *(100 * value for value in found), *map(float, re.findall(r"\d+\.\d+", shown)))


def leaves(value: Any) -> Iterator[float]:
    """The numbers inside of lists and mappings."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


if __name__ == "__main__":
    found = [f"{page}: {text}" for page in PAGES for text in wrong_numbers((HERE / page).read_text(encoding="utf-8"))]
    print("\n".join(found) or "every number is that of its record")
    sys.exit(bool(found))
