"""What is committed under results/: it belongs to committed studies, and documents show its numbers unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clustermim.errors import RunError
from clustermim.studies import expand, read_study
from clustermim.studies.records import read_record
from studies.document import document, section
from studies.numbers import GENERATED_BLOCK, PAGES, wrong_numbers
from studies.score_table import page

HERE = Path(__file__).parents[1]
STUDIES = sorted((HERE / "studies").glob("*.yaml"))
RECORDS = sorted((HERE / "results").glob("*.json"))


def test_there_are_results() -> None:
    assert len(RECORDS) >= 1


# Of these only files of studies were changed: seeds and rows, as studies/README.md says.
STUDY_FILES_ONLY = {"0c340b35992b3ea161425111a6098adb59f74a11+": ("cifar10-discretisation", "cifar10-equal-cost")}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_can_be_expanded(path: Path) -> None:
    study = read_study(path)
    assert len(expand(study)) >= len(study.stages)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_record_has_its_study_and_its_provenance(path: Path) -> None:
    study = read_study(HERE / "studies" / f"{path.stem}.yaml")
    record = read_record(path, study)
    made = {(cell["name"], cell["key"]) for cell in record["cells"]}
    asked = {(cell.name, cell.key) for cell in expand(study)}
    assert made <= asked
    missing = len({key for _, key in asked} - {key for _, key in made})  # a record grows cell by cell
    assert (f"Runs still to be made: {missing}." in section(study, record)) == (missing > 0)
    for cell in record["cells"]:
        assert {"results", "options", "seconds", "versions", "git_commit", "data"} <= cell.keys()
        clean = not cell["git_commit"].endswith("+") or study.name in STUDY_FILES_ONLY.get(cell["git_commit"], ())
        assert clean, f"{cell['name']} was made with uncommitted changes"


def test_the_document_is_current() -> None:
    """Written by `python -m studies.document`, never by hand."""
    assert (HERE / "docs" / "results.md").read_text(encoding="utf-8") == document(HERE / "studies", HERE / "results")


def test_the_readme_shows_a_table_of_the_document() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    kept = set((HERE / "docs" / "results.md").read_text(encoding="utf-8").splitlines())  # which is current
    assert {line for line in readme.splitlines() if " ± " in line and line.startswith("|")} <= kept
    rows = readme.partition("<!-- numbers: cifar10-discretisation -->\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) > 3
    assert set(rows) <= kept


def test_correlations_of_the_readme_are_those_of_the_document() -> None:
    text = (
        (HERE / "README.md")
        .read_text(encoding="utf-8")
        .partition("Scores before training order")[2]
        .partition("\n\n")[0]
    )
    found = re.findall(r"[+−]\d\.\d\d", text)
    assert len(found) == 4
    kept = (HERE / "docs" / "results.md").read_text(encoding="utf-8").partition('<a id="cifar10-tokenizers">')[2]
    assert [value for value in found if f"| {value.replace('−', '-')} (" not in kept] == []


def test_the_table_of_all_scores_is_current() -> None:
    """Written by `python -m studies.score_table`, never by hand."""
    text = (HERE / "docs" / "scores.md").read_text(encoding="utf-8")
    assert "| `transferability` | needed | " in text
    assert page(text, HERE / "results") == text


def test_correlations_that_a_page_shows_are_those_of_the_document() -> None:
    text = GENERATED_BLOCK.sub("", (HERE / "docs" / "scores.md").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line[:1] == "|"]
    found = [text for line in lines for text in re.findall(r"[+−]\d\.\d\d(?: \([^)]+\))?", line)]
    assert found
    kept = (HERE / "docs" / "results.md").read_text(encoding="utf-8")  # which is current
    assert [text for text in found if f"| {text.replace('−', '-')} |" not in kept] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_that_of_its_record(page: str) -> None:
    assert list(wrong_numbers((HERE / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ViT-S runs 1.9876 times as fast (`results/benchmarks/vit-speed-small.json`).",
            "1.9876 is in none of vit-speed",
        ),
        ("It has 61.23 %.", "no record is named for 61.23"),
        ("<!-- numbers: cifar10-best -->\n| MAE | 51.44 | 99.99 |", "99.99 is in none of cifar10-best"),
        ("- fine\n- 0.123 of it\n", "no record is named for 0.123 in “- 0.123"),
    ],
)
def test_wrong_numbers_are_found(text: str, said: str) -> None:
    (found,) = wrong_numbers(text)
    assert said in found


def test_right_numbers_and_code_are_not() -> None:
    table = "<!-- numbers: cifar10-best -->\n| MAE | 51.44 ± 0.53 |"
    assert list(wrong_numbers(f"{table}\n\n    run --ratio 0.123\n\n<!-- numbers: none -->\nPython 3.11.")) == []


def test_no_results(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no results"):
        document(HERE / "studies", tmp_path)


def test_hours_are_those_of_all_processes(tmp_path: Path) -> None:
    """The seconds of a summary are of the last process; of an interrupted run its training seconds are more."""
    (tmp_path / "x.yaml").write_text("stages: [{name: mae, stage: pretrain, options: {data: digits}}]\n")
    run = {"stage": "pretrain", "name": "mae", "key": "k", "axes": {}, "git_commit": "c"}
    cells = [
        run | {"seconds": 3600, "results": {"training_seconds": 7200}},
        run | {"key": "l", "seconds": 3600, "results": {}},
    ]
    cells.append(cells[1] | {"name": "the same by another name"})
    written = section(read_study(tmp_path / "x.yaml"), {"cells": cells})
    assert "2 runs, 3.0 hours, commits c. Runs still to be made: 1." in written
