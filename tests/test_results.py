"""What is committed under results/: it belongs to committed studies, and documents show its numbers unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustermim.studies import expand, read_study
from clustermim.studies.printing import to_markdown
from clustermim.studies.table import make_rows, read_record

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
    assert {(cell.name, cell.key) for cell in expand(study)} == {
        (cell["name"], cell["key"]) for cell in record["cells"]
    }
    for cell in record["cells"]:
        assert {"results", "options", "seconds", "versions", "git_commit", "data"} <= cell.keys()
        assert not cell["git_commit"].endswith("+"), f"{cell['name']} was made with uncommitted changes"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_readme_shows_the_record(path: Path) -> None:
    study = read_study(HERE / "studies" / f"{path.stem}.yaml")
    table = to_markdown(study, make_rows(study, read_record(path, study))).split("\n\n")[0]
    assert table in (HERE / "README.md").read_text(encoding="utf-8")
