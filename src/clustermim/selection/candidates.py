"""A tokenizer to try: fitted once, scored by a row of SCORES, ranked among others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clustermim.cost import measure_cost, over_ranks
from clustermim.data import Source
from clustermim.errors import ConfigError
from clustermim.runs import SUMMARY, check_same_config, open_run
from clustermim.scores import SCORES, Value
from clustermim.stage_table import hint
from clustermim.tokenizers import KMeansTokenizer, Tokenizer, load_tokenizer


class Candidate(NamedTuple):
    """A tokenizer to try: a name, also of its folder, the options of its class, and the class."""

    name: str
    options: dict[str, Any]
    kind: type[Tokenizer] = KMeansTokenizer

    def fitted(self, source: Source, out: str | Path | None, **shared: Any) -> Tokenizer:
        """Fitted to a source; in a folder it is fitted and saved once, and later ones must ask for the same."""
        tokenizer = self.kind(**self.options, **shared)
        if out is None:
            return tokenizer.fit(source)
        folder, config = Path(out) / self.name, tokenizer.config()
        if not (folder / SUMMARY).exists():
            with open_run(folder, f"fit {tokenizer.kind}", {"data": source.spec, **config}) as run:
                with measure_cost() as cost:
                    tokenizer.fit(source)
                tokenizer.save(run.folder)
                run.summary = {"results": {**tokenizer.results(), **over_ranks(cost)}, "data": source.describe()}
        check_same_config(folder, config, source.fingerprint)
        return load_tokenizer(folder)


def ranked(results: Mapping[str, Value], by: str) -> list[str]:
    """The names of those that have a score, the best first."""
    sign = 1 if SCORES[by].higher_is_better else -1
    scored = [name for name in results if not math.isnan(results[name].value)]
    return sorted(scored, key=lambda name: -sign * results[name].value)


def check_by(by: str) -> None:
    """Refuse to choose by what is no score, or has no better and worse."""
    known = [name for name, row in SCORES.items() if row.higher_is_better is not None]
    if by not in known:
        raise ConfigError(f"tokenizers cannot be chosen by {by!r}{hint(by, known)}")
