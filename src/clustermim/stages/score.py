"""`clustermim score`: all scores of a tokenizer, before any training."""

from __future__ import annotations

import re
import warnings
from dataclasses import asdict
from pathlib import Path

from clustermim.data import open_source
from clustermim.factories import PREFIX
from clustermim.options import flat
from clustermim.progress import log_info, warn_skipped
from clustermim.runs import check_not_inside, open_run
from clustermim.scores import Scores, TCASVariant
from clustermim.scores import score as score_tokenizer
from clustermim.tokenizers import load_tokenizer
from clustermim.training import Device, find_device


@flat
def score(
    tokenizer: str,
    data: str,
    out: str | None = None,
    variant: TCASVariant = TCASVariant(),
    rivals: bool = False,
    permutations: int = 10,
    seed: int = 0,
    device: Device | None = None,
    unlabelled: str | None = None,
    overwrite: bool = False,
) -> Scores:
    """Score a tokenizer before any training; on images without labels, by the scores that need none.

    Args:
        tokenizer: the folder of a fitted tokenizer, or `module:package.module:factory`.
        data: where the images are; best not those it was fitted on.
        out: the run folder to write; by default a folder `score-…` inside the tokenizer's, replaced when run again;
            for a module in the current folder.
        rivals: also known scores to compare with: RankMe, LiDAR, LEEP, LogME, … (docs/scores.md).
        permutations: of the image labels, for the null.
        seed: of the permutations and of the groups of images.
        device: where to compute the tokens; by default the fastest that is there.
        unlabelled: more images, for half_retrieval, which needs no labels: transferability then does with fewer.
        overwrite: replace a complete run in `out`.
    """
    loaded, source = load_tokenizer(tokenizer).to(find_device(device)), open_source(data)
    options = {**asdict(variant), "rivals": rivals, "permutations": permutations, "seed": seed}
    options |= {} if unlabelled is None else {"unlabelled": unlabelled}
    # inside the tokenizer's folder; a module has none, so in one of its name in the current folder
    home = Path(_slug(tokenizer) if tokenizer.startswith(PREFIX) else tokenizer)
    folder = out or str(home / f"score-{_slug(source.spec)}-{source.fingerprint[:8]}")
    check_not_inside(tokenizer, folder, "the tokenizer to score")
    config = {"tokenizer": tokenizer, "data": data, **options}
    with open_run(folder, "score", config, overwrite=overwrite or out is None) as run:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = score_tokenizer(loaded, source, **options)
        run.summary = {"results": found.to_dict(), "data": source.describe()}
    for warning in caught:
        log_info(f"warning: {warning.message}")
    warn_skipped(source.skipped)
    return found


def _slug(spec: str) -> str:
    """A source's text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", spec).strip("-")[-40:]
