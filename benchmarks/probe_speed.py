"""The linear probe by L-BFGS on features computed once, beside 90 epochs of gradient descent on random crops.

    python -m benchmarks.probe_speed RUN --data "cifar10/train?limit=10000" --test-data cifar10/test

Seconds of the first include computing the features, and are the mean of one time before the other protocol and one
after it, so that a change of the machine's speed is seen; those of the second are of training alone, its test left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.record import record, seconds
from clustermim.data import Source, open_source
from clustermim.evaluation import PROBING, ProbeOptions
from clustermim.evaluation.features import extract
from clustermim.evaluation.frozen import probe_features
from clustermim.models.encoder import Encoder, load_encoder
from clustermim.stages.evaluate import probe


def main() -> None:
    """Both protocols on one encoder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="the folder of a pretrained encoder")
    parser.add_argument("--data", default="cifar10/train?limit=10000")
    parser.add_argument("--test-data", default="cifar10/test")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--augment", default="pad-crop", help="of the 90 epochs; MAE crops and resizes (crop)")
    args = parser.parse_args()
    encoder = load_encoder(args.run)
    train, test = open_source(args.data), open_source(args.test_data)
    before, solved = seconds(lambda: closed(encoder, train, test))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe"
        mae, schedule = ProbeOptions("mae", augment=args.augment), replace(PROBING, epochs=args.epochs)
        probe(args.run, args.data, args.test_data, str(out), probe=mae, schedule=schedule)
        descended = json.loads((out / "summary.json").read_text())["results"]
    after, _ = seconds(lambda: closed(encoder, train, test))
    training = descended["avg"]["training_seconds"]
    results = {
        "lbfgs_seconds": {"before": round(before, 1), "after": round(after, 1)},
        "mae_seconds": training,
        "times_faster": round(2 * training / (before + after), 1),
        "accuracy": {
            pooling: {"lbfgs": solved[pooling]["accuracy"], "mae": descended[pooling]["accuracy"]} for pooling in solved
        },
    }
    record("probe-speed", {**vars(args), "run": f"encoder {encoder.weights[:12]}"}, results)


def closed(encoder: Encoder, train: Source, test: Source) -> dict[str, Any]:
    """Accuracies by L-BFGS for both poolings, features included."""
    here, there = extract(encoder, train), extract(encoder, test)
    return {pooling: probe_features(here[pooling], there[pooling]).to_dict() for pooling in here}


if __name__ == "__main__":
    main()
