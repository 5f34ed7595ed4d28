"""What scoring costs beside tokenizing: reading, tokenizing and making views, and all else.

python -m benchmarks.score_overhead --data cifar10/test
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from benchmarks.record import record, seconds
from clustermim.data import open_source
from clustermim.scores.collect import SAMPLE, Tokens
from clustermim.scores.table import SCORES
from clustermim.scores.tcas import TCASVariant
from clustermim.tokenizers import KMeansTokenizer


def turn(tokenizer: KMeansTokenizer, data: str) -> dict[str, float]:
    """Seconds of each part of one scoring."""
    tokens = Tokens(tokenizer, open_source(data), TCASVariant(), images=SAMPLE)
    found = {}
    found["tokenizing"], _ = seconds(lambda: (tokens.sample, tokens.ids))
    found["views"], _ = seconds(lambda: tokens.views)
    found["scores"], _ = seconds(lambda: [score.measure(tokens) for score in SCORES.values() if not score.on_request])
    return found


def measure(data: str, train: str, space: Any, k: int, turns: int) -> dict[str, Any]:
    """Medians over turns; a first one is not counted."""
    tokenizer = KMeansTokenizer(k=k, patch_size=4, space=space, max_patches=65_536).fit(train)
    found = [turn(tokenizer, data) for _ in range(turns + 1)][1:]
    row = {name: median(one[name] for one in found) for name in found[0]}
    share = row["scores"] / (row["tokenizing"] + row["views"])
    return {
        "space": space,
        "k": k,
        **{f"{n}_seconds": round(s, 3) for n, s in row.items()},
        "overhead": round(share, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="cifar10/test")
    parser.add_argument("--train", default="cifar10/train?limit=1000")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    cases = [(space, k) for space in ("pixel", "pixel-white") for k in (50, 500)]
    rows = [measure(options.data, options.train, space, k, options.turns) for space, k in cases]
    record("score-overhead", vars(options), rows)


if __name__ == "__main__":
    main()
