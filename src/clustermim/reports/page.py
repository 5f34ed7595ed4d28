"""One page about many runs: what the template shows, put together; everything that comes from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from clustermim import __version__
from clustermim.drawing.page import check_out, write_out
from clustermim.errors import RunError
from clustermim.reports.answer import Answer, make_answer
from clustermim.reports.charts import scatters
from clustermim.reports.collect import collect
from clustermim.reports.curves import training_curves
from clustermim.reports.explorer import Explorer, make_explorer
from clustermim.reports.numbers import fixed, ticks
from clustermim.reports.pictures import reconstructions
from clustermim.reports.provenance import origins
from clustermim.reports.ranking import ORDER, PREDICTING, Ranking, best_first
from clustermim.reports.records import MEASURES, Records, make_records, unique
from clustermim.results import Result, Table
from clustermim.scores import SCORES

HERE = Path(__file__).parent
SCRIPTS = ("helpers.js", "charts.js", "tables.js", "explorer.js", "report.js")
STYLES = ("report.css", "tables.css", "explorer.css")
MOST_RANKED = 12  # rows of the first table; all are in the others


@dataclass(frozen=True)
class Report(Result):
    """A page that was written: where, and about what."""

    path: Path
    tokenizers: int
    encoders: int
    size: int  # bytes
    left_out: tuple[str, ...]  # a line for each thing that the page does not show, and why
    answer: str  # which target to take, and by what

    def table(self) -> Table:
        """One row, and below it the answer and what was left out."""
        columns = ("page", "tokenizers", "encoders", "MB")
        row = (str(self.path), str(self.tokenizers), str(self.encoders), f"{self.size / 1e6:.1f}")
        lines = [self.answer, *(f"left out: {note}" for note in self.left_out)]
        return Table("", columns, [row], "\n".join(" ".join(line.split()) for line in lines))


def report(
    folders: str | Path | list[str] | list[Path],
    out: str | Path,
    *,
    data: str | None = None,
    images: int = 512,
    seed: int = 0,
    trust_runs: bool = False,
    overwrite: bool = False,
) -> Report:
    """Write one page about the runs in some folders: which target to take, tables, charts, pictures and tokens.

    The page is one file that needs no network and no other file. To make it, nothing is read outside the folders but
    `data` and built-in images.

    >>> import clustermim as cm
    >>> digits = {"data": "digits/train", "test_data": "digits/test", "patch_size": 4, "epochs": 1}
    >>> result = cm.run_study("mae", "runs", **digits)
    >>> cm.report("runs", "report.html").encoders
    1

    Args:
        folders: run folders, or folders that hold them, such as that of a study.
        out: the page to write, an .html file.
        data: images on which to show tokens; by default those that each tokenizer was fitted on, if they are built in.
        images: how many of them to look at, drawn at random.
        seed: of the random choices.
        trust_runs: also open images and teachers elsewhere that the files of the runs name, and show commands that
            name code; for runs of your own.
        overwrite: replace an existing page.
    """
    path = Path(out)
    check_out(path, (".html", ".htm"), overwrite)
    named = [folders] if isinstance(folders, str | os.PathLike) else folders
    found, left_out = collect([os.fspath(folder) for folder in named])
    records = make_records(found)
    if not records.tokenizers and not records.pretrained:
        stages = ", ".join(sorted({run.stage for run in found}))
        raise RunError(f"the runs have no tokenizer and no pretrained encoder, only {stages}: name theirs too")
    explorer = make_explorer(records.tokenizers, data, images, seed, trust_runs)
    notes = (*left_out, *records.left_out, *explorer.left_out)
    answer = make_answer(records, trust_runs)
    page = make_page(records, explorer, notes, answer, trust_runs)
    write_out(path, page)
    return Report(path, len(records.tokenizers), len(unique(records.pretrained)), len(page), notes, answer.text())


def make_page(
    records: Records, explorer: Explorer, notes: Sequence[str], answer: Answer | None = None, trust_runs: bool = False
) -> bytes:
    """The whole page; the same runs give the same bytes."""
    answer = answer or make_answer(records, trust_runs)
    records = best_first(records, answer.ranking)
    encoders, tokenizers = records.pretrained, records.tokenizers
    sources = {record.measured_on for record in encoders if record.accuracies}
    values = {
        key: [r.accuracies[key].value for r in encoders if key in r.accuracies and not r.role] for key in MEASURES
    }
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    html = _environment().get_template("page.html.jinja").render(
        version=__version__,
        style=Markup("".join((HERE / name).read_text(encoding="utf-8") for name in STYLES)),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        answer=answer,
        axis=answer.ranking and Axis.of(answer.ranking),
        most_ranked=MOST_RANKED,
        records=records,
        encoders=len(unique(encoders)),
        measures={key: name for key, name in MEASURES.items() if any(key in record.accuracies for record in encoders)},
        # rows that were measured on the same images compare
        best={key: max(values[key]) for key in MEASURES if values[key]} if len(sources) == 1 else {},
        scores=[SCORES[name] for name in ORDER if any(name in record.scores for record in tokenizers)],
        predicting=PREDICTING,
        show_measured=len(sources) > 1,
        show_predicts=any(not record.title.startswith(record.predicts) for record in encoders),
        scatters=scatters(encoders),
        measure_names=MEASURES,
        explorer=explorer,
        curves=training_curves(records.runs),
        pictures=reconstructions(encoders),
        origins=origins(records.runs, trust_runs),
        notes=notes,
    )  # fmt: skip
    return html.encode("utf-8", "backslashreplace")  # a file name may hold what UTF-8 does not


@dataclass(frozen=True)
class Axis:
    """The line on which the intervals of a ranking lie: places are percentages of its length."""

    low: float
    high: float

    @classmethod
    def of(cls, ranking: Ranking) -> Axis:
        """Wide enough for every interval."""
        values = [entry.value for entry in ranking.entries[:MOST_RANKED]]
        ends = [end for value in values for end in value if end is not None]
        room = 0.04 * (max(ends) - min(ends)) or 1.0
        return cls(min(ends) - room, max(ends) + room)

    def at(self, value: float) -> str:
        """The place of a value."""
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """Round values on it."""
        return ticks(self.low, self.high, 6)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["fixed"] = fixed
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # of `tojson`
    return environment
