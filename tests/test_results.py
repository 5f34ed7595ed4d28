"""What is committed under results/: it belongs to committed studies, and documents show its numbers unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clustermim.errors import RunError
from clustermim.studies import expand, read_study
from clustermim.studies.records import read_record
from studies.document import document, section

HERE = Path(__file__).parents[1]
STUDIES = sorted((HERE / "studies").glob("*.yaml"))
RECORDS = sorted((HERE / "results").glob("*.json"))


def test_there_are_results() -> None:
    assert len(RECORDS) >= 1


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
    assert made == asked
    for cell in record["cells"]:
        assert {"results", "options", "seconds", "versions", "git_commit", "data"} <= cell.keys()
        assert not cell["git_commit"].endswith("+"), f"{cell['name']} was made with uncommitted changes"


def test_the_document_is_current() -> None:
    """Written by `python -m studies.document`, never by hand."""
    assert (HERE / "docs" / "results.md").read_text(encoding="utf-8") == document(HERE / "studies", HERE / "results")


def test_the_readme_shows_tables_of_the_document() -> None:
    rows = [line for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines() if " ± " in line]
    assert rows
    kept = document(HERE / "studies", HERE / "results").splitlines()
    assert [row for row in rows if row.startswith("|") and row not in kept] == []


@pytest.mark.parametrize("page", ["README.md", "docs/scores.md"])
def test_correlations_that_pages_show_are_those_of_the_document(page: str) -> None:
    lines = [line for line in (HERE / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    found = [text for line in lines for text in re.findall(r"[+−]\d\.\d\d(?: \([^)]+\))?", line)]
    assert found
    kept = document(HERE / "studies", HERE / "results")
    assert [text for text in found if f"| {text.replace('−', '-')} |" not in kept] == []


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
