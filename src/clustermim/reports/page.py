"""The page itself: what the template shows, put together; everything that comes from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from clustermim import __version__
from clustermim.reports.charts import Scatter, planes, scatters, training_curves, usage_bars
from clustermim.reports.explorer import Explorer
from clustermim.reports.records import PretrainRecord, Records, TokenizerRecord, unique
from clustermim.reports.sprites import encode_file
from clustermim.reports.values import MEASURES, SCORES

HERE = Path(__file__).parent
PICTURE = "reconstructions.png"
PICTURE_WIDTH, PICTURE_BYTES, PICTURES = 1000, 45_000, 20  # of each reconstruction, and how many
DECIMALS = {"sum_sq": 2, "perplexity": 1}  # of a score; three for the others


class Picture(NamedTuple):
    """A picture that a run left, small enough for a page."""

    record: PretrainRecord
    text: str  # base64 of WebP
    width: int
    height: int


class Usage(NamedTuple):
    """The use of a codebook."""

    title: str
    path: str
    used: int
    vocab: int
    most: float  # share of the most used token, percent


def make_page(records: Records, explorer: Explorer, notes: Sequence[str]) -> bytes:
    """The whole page; the same runs give the same bytes."""
    pairs = scatters(records.pretrained)
    measures = [key for key in MEASURES if any(key in record.accuracies for record in records.pretrained)]
    script = (HERE / "report.js").read_text(encoding="utf-8")
    html = _template().render(
        version=__version__,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        lead=lead(records, pairs),
        records=records,
        measures={key: MEASURES[key] for key in measures},
        best=best_accuracies(records.pretrained, measures),
        scores={key: SCORES[key] for key in SCORES if any(key in t.scores for t in records.tokenizers)},
        decimals=DECIMALS,
        show_measured=len({record.measured_on for record in records.pretrained if record.accuracies}) > 1,
        show_predicts=any(record.name != record.predicts for record in records.pretrained),
        scatters=pairs,
        score_names=SCORES,
        measure_names=MEASURES,
        explorer=explorer,
        usage=[_usage(record, explorer) for record in records.tokenizers if record.title in explorer.counts],
        curves=training_curves(records.pretrained),
        planes=[plane for plane in planes(records.tokenizers) if len(plane.winners) > 1],
        pictures=reconstructions(records.pretrained),
        notes=notes,
    )
    return html.encode("utf-8", "backslashreplace")  # a file name may hold what UTF-8 does not


def lead(records: Records, pairs: Sequence[Scatter]) -> list[str]:
    """What the page says first, in a few sentences."""
    said = [f"{count(records.tokenizers, 'tokenizer')}, {count(unique(records.pretrained), 'pretrained encoder')}."]
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
                said.append(f"Debiased TCAS against it{scored}: r = {fixed(pair.r)} over {pair.count} tokenizers.")
    return said


def count(things: Sequence[object], name: str) -> str:
    """A number of things, in words.

    >>> count([1, 2], "run")
    '2 runs'
    """
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


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


def reconstructions(records: Sequence[PretrainRecord]) -> list[Picture]:
    """The pictures that runs left of what they predict; one that cannot be read is passed over."""
    found: list[Picture] = []
    for record in unique(records):
        path = record.found.folder / PICTURE
        if len(found) == PICTURES:
            break
        try:
            text, size = encode_file(path, PICTURE_WIDTH, PICTURE_BYTES)
        except (OSError, ValueError):
            continue
        found.append(Picture(record, text, *size))
    return found


def safe_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: ASCII, and no character that HTML or a script reads otherwise."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _usage(record: TokenizerRecord, explorer: Explorer) -> Usage:
    counts = explorer.counts[record.title]
    most = 100 * float(counts.max()) / max(int(counts.sum()), 1)
    return Usage(record.title, usage_bars(counts), int((counts > 0).sum()), len(counts), most)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"safe_json": safe_json, "fixed": fixed, "ratio": ratio, "brief": brief}
    return environment.get_template("page.html.jinja")
