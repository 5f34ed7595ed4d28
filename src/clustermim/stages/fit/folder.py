"""How every fit ends: a run folder with the tokenizer in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clustermim.data import Source, open_source
from clustermim.distributed import process_group, rank
from clustermim.progress import log_info, warn_skipped
from clustermim.runs import Run, open_run
from clustermim.tokenizers import Tokenizer


def fit_into(
    tokenizer: Tokenizer,
    fit: Callable[[Source, Run], dict[str, Any]],
    data: str,
    out: str,
    overwrite: bool,
    **more: Any,
) -> None:
    """Fit, save and describe a tokenizer in a run folder; its configuration is the tokenizer's, and `more`."""
    config = {"data": data, **tokenizer.config(), **more}
    with process_group():
        with open_run(out, f"fit {tokenizer.kind}", config, overwrite=overwrite) as run:
            source = open_source(data)
            results = fit(source, run)
            tokenizer.save(run.folder)
            run.summary = {"results": results, "data": source.describe()}
        warn_skipped(source.skipped)
        log_info(", ".join(f"{name} {value:,.6g}" for name, value in results.items()))
        if rank() == 0:
            print(f"wrote a tokenizer of {tokenizer.vocab_size} tokens ({tokenizer.kind}) to {out}")
