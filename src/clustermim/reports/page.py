"""One page about many runs: what the template shows, put together; everything that comes from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from clustermim import __version__
from clustermim.drawing.page import PICTURE, check_out, write_out
from clustermim.errors import RunError
from clustermim.reports.charts import scatters, training_curves, watch_curves
from clustermim.reports.collect import collect
from clustermim.reports.explorer import Explorer, encode, make_explorer
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
        return Table("", columns, [row], "\n".join(" ".join(f"left out: {note}".split()) for note in self.left_out))


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
    """Write one page about the runs in some folders: tables, charts, reconstructions and an explorer of tokens.

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
        trust_runs: also open images and teachers elsewhere that the files of the runs name; for runs of your own.
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
    page = make_page(records, explorer, notes)
    write_out(path, page)
    return Report(path, len(records.tokenizers), len(unique(records.pretrained)), len(page), notes)


def make_page(records: Records, explorer: Explorer, notes: Sequence[str]) -> bytes:
    """The whole page; the same runs give the same bytes."""
    encoders, tokenizers = records.pretrained, records.tokenizers
    sources = {record.measured_on for record in encoders if record.accuracies}
    values = {
        key: [record.accuracies[key].value for record in encoders if key in record.accuracies] for key in MEASURES
    }
    measures = {key: name for key, name in MEASURES.items() if values[key]}
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in ("charts.js", "report.js"))
    template, watched = _environment().get_template("page.html.jinja"), watch_curves(encoders)
    html = template.render(
        version=__version__,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        lead=lead(records),
        records=records,
        measures=measures,
        # rows that were measured on the same images compare
        best={key: max(values[key]) for key in measures} if len(sources) == 1 else {},
        scores=[score for score in SCORES.values() if any(score.name in record.scores for record in tokenizers)],
        show_measured=len(sources) > 1,
        show_predicts=any(not record.title.startswith(record.predicts) for record in encoders),
        scatters=scatters(encoders),
        measure_names=MEASURES,
        explorer=explorer,
        curves={f"Predicting {target}": chart for target, chart in training_curves(encoders).items()} | watched,
        watched=watched,
        pictures=reconstructions(encoders),
        notes=notes,
    )
    return html.encode("utf-8", "backslashreplace")  # a file name may hold what UTF-8 does not


def lead(records: Records) -> str:
    """What the page says first; the best probe only where all were measured on the same images."""
    said = f"Tokenizers: {len(records.tokenizers)}, pretrained encoders: {len(unique(records.pretrained))}."
    probes = {record.title: record for record in records.pretrained if "probe avg" in record.accuracies}
    if len({record.measured_on for record in probes.values()}) != 1:
        return said
    value, title = max((record.accuracies["probe avg"].value, title) for title, record in probes.items())
    return f"{said} The best linear probe is {value:.1f} %, of {title}."


def fixed(value: float, digits: int = 2) -> str:
    """A number with so many decimals and a real minus sign, which zero has not.

    >>> fixed(-0.001), fixed(-0.5)
    ('0.00', '−0.50')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def reconstructions(records: Sequence[PretrainRecord]) -> list[tuple[str, str, int, int]]:
    """The pictures that runs left of what they predict, as title, base64, width and height; unreadable ones are not."""
    found: list[tuple[str, str, int, int]] = []
    for record in unique(records):
        with suppress(OSError, ValueError), Image.open(record.found.folder / PICTURE) as opened:
            picture = opened.convert("RGB")
            picture.thumbnail((PICTURE_WIDTH, picture.height), Image.Resampling.BOX)
            found.append((record.title, encode(picture, PICTURE_BYTES), *picture.size))
    return found[:PICTURES]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["fixed"] = fixed
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # of `tojson`
    return environment
