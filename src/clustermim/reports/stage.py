"""The stage that lets people look instead of read: `clustermim report`, many runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clustermim.drawing.output import check_out, write_out
from clustermim.errors import RunError
from clustermim.progress import log_info
from clustermim.reports.collect import collect
from clustermim.reports.explorer import make_explorer
from clustermim.reports.page import count, make_page
from clustermim.reports.records import make_records, unique


def report(
    folders: str | list[str],
    out: str,
    data: str | None = None,
    images: int = 512,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Write one page about many runs: tables, charts, reconstructions and an explorer of tokens.

    The page is one file that needs no network and no other file.

    Args:
        folders: run folders, or folders that hold them, such as that of a study.
        out: the page to write, an .html file.
        data: images on which to show tokens; by default those that each tokenizer was fitted on.
        images: how many of them to look at, drawn at random.
        seed: of the random choices.
        overwrite: replace an existing page.
    """
    path = Path(out)
    check_out(path, (".html", ".htm"), overwrite)
    found, left_out = collect([folders] if isinstance(folders, str) else folders)
    records = make_records(found)
    if not records.tokenizers and not records.pretrained:
        stages = ", ".join(sorted({run.stage for run in found}))
        raise RunError(
            f"there is no tokenizer and no pretrained encoder among the runs, only {stages}: name theirs too"
        )
    explorer = make_explorer(records.tokenizers, data, images, seed)
    notes = [*left_out, *records.left_out, *explorer.left_out]
    page = make_page(records, explorer, notes)
    write_out(path, page)
    _warn(notes)
    runs = f"{count(records.tokenizers, 'tokenizer')} and {count(unique(records.pretrained), 'pretrained encoder')}"
    print(f"wrote a report of {runs} to {path} ({len(page) / 1e6:.1f} MB)")


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        log_info("warning: " + " ".join(f"left out: {note}".split()))
