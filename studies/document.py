"""All committed results as one document: `python -m studies.document` writes docs/results.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clustermim.errors import RunError
from clustermim.files import write_atomic
from clustermim.studies.cells import expand
from clustermim.studies.comparison import read_prediction
from clustermim.studies.description import Study, read_study
from clustermim.studies.records import read_record
from clustermim.studies.result import StudyResult
from clustermim.studies.table import check_table

HERE = Path(__file__).parents[1]
HEAD = """# Results

Written by `python -m studies.document` from the records under `results/`. The study of the same name in `studies/` made
each record. A number is the mean over seeds ± the standard deviation between them; intervals are Welch's, 95 %."""


def document(studies: Path, records: Path) -> str:
    """The whole document."""
    found = sorted(records.glob("*.json"))
    if not found:
        raise RunError(
            f"{records} holds no results: make some with `clustermim study FILE --results {records}/FILE.json`"
        )
    contents, sections = [], []
    for path in found:
        study = read_study(studies / f"{path.stem}.yaml")
        check_table(study, expand(study))
        contents.append(f"- [{study.title}](#{study.name})")
        sections.append(section(study, read_record(path, study), records))
    return "\n\n".join([HEAD, "\n".join(contents), *sections]) + "\n"


def section(study: Study, record: dict[str, Any], records: Path = HERE / "results") -> str:
    """One study: what it asks, its table with what was predicted, and where its numbers come from."""
    prediction = read_prediction(records, study, expand(study))
    cells = list({cell["key"]: cell for cell in record["cells"]}.values())  # one may have several names
    # Of a run that was interrupted, `seconds` are those of its last process alone.
    hours = sum(max(cell["seconds"], cell["results"].get("training_seconds", 0)) for cell in cells) / 3600
    commits = ", ".join(sorted({str(cell["git_commit"])[:12] for cell in cells}))
    origin = f"`studies/{study.name}.yaml`: {len(cells)} runs, {hours:.1f} hours, commits {commits}."
    missing = len({cell.key for cell in expand(study)} - {cell["key"] for cell in cells})
    if missing:
        origin += f" Runs still to be made: {missing}."
    title = f'<a id="{study.name}"></a>\n\n## {study.title}'
    return "\n\n".join([title, study.about, StudyResult(study, record, prediction=prediction).markdown(), origin])


if __name__ == "__main__":
    write_atomic(HERE / "docs" / "results.md", document(HERE / "studies", HERE / "results").encode())
