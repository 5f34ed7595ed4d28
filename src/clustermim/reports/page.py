"""One page about many runs: what the template shows, put together; everything that comes from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from clustermim import __version__
from clustermim.drawing.page import PICTURE, check_out, write_out
from clustermim.errors import RunError
from clustermim.reports.charts import Scatter, planes, scatters, training_curves, usage_bars
from clustermim.reports.collect import collect
from clustermim.reports.explorer import Explorer, encode_file, make_explorer
from clustermim.reports.records import MEASURES, PretrainRecord, Records, make_records, unique
from clustermim.results import Result, Table
from clustermim.scores import SCORES

HERE = Path(__file__).parent
PICTURE_WIDTH, PICTURE_BYTES, PICTURES = 1000, 45_000, 20  # of each reconstruction, and how many


@dataclass(frozen=True)
class Report(Result):
    """A page that was written: where, and about what."""

    path: Path
    tokenizers: int
    encoders: int
    size: int  # bytes
    left_out: tuple[str, ...]  # a line for each thing that the page does not show, and why

    def table(self) -> Table:
        """One row, and what was left out below."""
        columns = ("page", "tokenizers", "encoders", "MB")
        row = (str(self.path), str(self.tokenizers), str(self.encoders), f"{self.size / 1e6:.1f}")
        return Table("", columns, [row], "\n".join(f"left out: {note}" for note in self.left_out))


def report(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    data: str | None = None,
    images: int = 512,
    seed: int = 0,
    overwrite: bool = False,
) -> Report:
    """Write one page about the runs in some folders: tables, charts, reconstructions and an explorer of tokens.

    It shows tokens on `images` random images of `data`, by default of those that each tokenizer was fitted on.

    >>> import clustermim as cm
    >>> digits = {"data": "digits/train", "test_data": "digits/test", "patch_size": 4, "epochs": 1}
    >>> result = cm.run_study("mae", "runs", **digits)
    >>> cm.report("runs", "report.html").encoders
    1
    """
    path = Path(out)
    check_out(path, (".html", ".htm"), overwrite)
    named = [folders] if isinstance(folders, str | os.PathLike) else folders
    found, left_out = collect([os.fspath(folder) for folder in named])
    records = make_records(found)
    if not records.tokenizers and not records.pretrained:
        stages = ", ".join(sorted({run.stage for run in found}))
        raise RunError(
            f"there is no tokenizer and no pretrained encoder among the runs, only {stages}: name theirs too"
        )
    explorer = make_explorer(records.tokenizers, data, images, seed)
    notes = (*left_out, *records.left_out, *explorer.left_out)
    page = make_page(records, explorer, notes)
    write_out(path, page)
    return Report(path, len(records.tokenizers), len(unique(records.pretrained)), len(page), notes)


def make_page(records: Records, explorer: Explorer, notes: Sequence[str]) -> bytes:
    """The whole page; the same runs give the same bytes."""
    pairs = scatters(records.pretrained)
    measures = [key for key in MEASURES if any(key in record.accuracies for record in records.pretrained)]
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in ("charts.js", "report.js"))
    html = _template().render(
        version=__version__,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        lead=lead(records, pairs),
        records=records,
        measures={key: MEASURES[key] for key in measures},
        best=best_accuracies(records.pretrained, measures),
        scores=[score for score in SCORES.values() if any(score.name in t.scores for t in records.tokenizers)],
        show_measured=len({record.measured_on for record in records.pretrained if record.accuracies}) > 1,
        show_predicts=any(record.name != record.predicts for record in records.pretrained),
        scatters=pairs,
        measure_names=MEASURES,
        explorer=explorer,
        usage={title: (counts, usage_bars(counts)) for title, counts in explorer.counts.items()},
        curves=training_curves(records.pretrained),
        planes=planes(records.tokenizers),
        pictures=reconstructions(records.pretrained),
        notes=notes,
    )
    return html.encode("utf-8", "backslashreplace")  # a file name may hold what UTF-8 does not


def lead(records: Records, pairs: Sequence[Scatter]) -> list[str]:
    """What the page says first, in a few sentences."""
    encoders = len(unique(records.pretrained))
    said = [f"{count(len(records.tokenizers), 'tokenizer')}, {count(encoders, 'pretrained encoder')}."]
    measured = [record for record in records.pretrained if "probe avg" in record.accuracies]
    sources = dict.fromkeys(record.measured_on or "" for record in measured)
    for source in sources:
        here = [record for record in measured if (record.measured_on or "") == source]
        best = max(here, key=lambda record: record.accuracies["probe avg"].value)
        where = f" on {brief(source)}" if source and len(sources) > 1 else ""
        said.append(f"The best linear probe{where} is {best.accuracies['probe avg'].value:.1f} %, of {best.title}.")
        for pair in pairs:
            if (pair.measured_on, pair.score, pair.measure) == (source, "debiased", "probe avg") and pair.r is not None:
                scored = pair.data.removeprefix(pair.measured_on)
                said.append(f"Debiased TCAS against it{scored}: r = {fixed(pair.r)} over {pair.tokenizers} tokenizers.")
    return said


def count(number: int, name: str) -> str:
    """A number of things, in words.

    >>> count(2, "run")
    '2 runs'
    """
    return f"{number} {name}" + ("" if number == 1 else "s")


def fixed(value: float, digits: int = 2) -> str:
    """A number with so many decimals and a real minus sign, which zero has not.

    >>> fixed(-0.001), fixed(-0.5)
    ('0.00', '−0.50')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def brief(spec: str, length: int = 28) -> str:
    """A data spec without its options where it is long; the page has them as a tooltip."""
    return spec if len(spec) <= length or "?" not in spec else spec.split("?")[0] + "?…"


def ratio(value: float) -> str:
    """An end of an interval of ratios."""
    return "∞" if math.isinf(value) else f"{value:.3g}"


def best_accuracies(records: Sequence[PretrainRecord], measures: Sequence[str]) -> dict[str, float]:
    """The best value of each column, where the rows were measured on the same images and so compare."""
    if len({record.measured_on for record in records if record.accuracies}) != 1:
        return {}
    return {
        key: max(record.accuracies[key].value for record in records if key in record.accuracies) for key in measures
    }


def reconstructions(records: Sequence[PretrainRecord]) -> list[tuple[str, str, int, int]]:
    """The pictures that runs left of what they predict, as title, base64, width and height; unreadable ones are not."""
    found: list[tuple[str, str, int, int]] = []
    for record in unique(records):
        with suppress(OSError, ValueError):
            text, size = encode_file(record.found.folder / PICTURE, PICTURE_WIDTH, PICTURE_BYTES)
            found.append((record.title, text, *size))
    return found[:PICTURES]


def safe_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: ASCII, and no character that HTML or a script reads otherwise."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"safe_json": safe_json, "fixed": fixed, "ratio": ratio, "brief": brief}
    return environment.get_template("page.html.jinja")
