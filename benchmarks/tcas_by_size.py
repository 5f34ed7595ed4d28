"""TCAS of pixel k-means by codebook size, on images it was not fitted on.

python -m benchmarks.tcas_by_size --data cifar10/train --test-data cifar10/test --patch-size 4
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.record import record, seconds
from clustermim.data import open_source
from clustermim.scores import score
from clustermim.tokenizers import KMeansTokenizer, RandomTokenizer

KEPT = (
    "debiased", "debiased_low", "debiased_high", "debiased_kept", "adjusted", "adjusted_low", "adjusted_high", "tcas",
    "null", "chance", "alpha", "sum_sq", "used", "vocab_size", "perplexity", "nmi", "images", "patches",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="textures:train")
    parser.add_argument("--test-data", default="textures:test")
    parser.add_argument("--patch-size", type=int, default=8)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 25, 50, 100, 200, 500, 1000])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="tcas-by-size")
    options = parser.parse_args()
    train, test = open_source(options.data), open_source(options.test_data)
    rows: list[dict[str, Any]] = []
    for k in options.k:
        for tokenizer in (
            KMeansTokenizer(k, options.patch_size, seed=options.seed),
            RandomTokenizer(k, options.patch_size, seed=options.seed),
        ):
            fitting, _ = seconds(lambda tokenizer=tokenizer: tokenizer.fit(train))
            scoring, scores = seconds(lambda tokenizer=tokenizer: score(tokenizer, test, seed=options.seed).to_dict())
            spent = {"fit_seconds": round(fitting, 2), "score_seconds": round(scoring, 2)}
            rows.append({"tokenizer": tokenizer.kind, "k": k, **{key: scores[key] for key in KEPT}, **spent})
    config = {**vars(options), "data": train.fingerprint, "test_data": test.fingerprint}
    record(options.name, config, rows)


if __name__ == "__main__":
    main()
