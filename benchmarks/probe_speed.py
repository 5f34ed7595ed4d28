"""The linear probe by L-BFGS on features computed once, beside 90 epochs of gradient descent on random crops.

    python -m benchmarks.probe_speed RUN --data "cifar10/train?limit=10000" --test-data cifar10/test

Seconds of the first include computing the features; those of the second are of training alone, its test left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.record import record, seconds
from clustermim.data import open_source
from clustermim.evaluation.features import extract
from clustermim.evaluation.linear import linear_probe
from clustermim.evaluation.stages import probe
from clustermim.models.storage import load_encoder


def main() -> None:
    """Both protocols on one encoder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="the folder of a pretrained encoder")
    parser.add_argument("--data", default="cifar10/train?limit=10000")
    parser.add_argument("--test-data", default="cifar10/test")
    parser.add_argument("--epochs", type=int, default=90)
    args = parser.parse_args()
    encoder = load_encoder(args.run)
    train, test = open_source(args.data), open_source(args.test_data)
    computing, (here, there) = seconds(lambda: (extract(encoder, train), extract(encoder, test)))
    solving, solved = seconds(lambda: {pooling: linear_probe(here[pooling], there[pooling]) for pooling in here})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe"
        probe(args.run, args.data, args.test_data, str(out), protocol="mae", epochs=args.epochs)
        descended = json.loads((out / "summary.json").read_text())["results"]
    training = descended["avg"]["training_seconds"]
    results = {
        "lbfgs_seconds": {"features": round(computing, 1), "solving both poolings": round(solving, 1)},
        "mae_seconds": training,
        "times_faster": round(training / (computing + solving), 1),
        "accuracy": {
            pooling: {"lbfgs": solved[pooling]["accuracy"], "mae": descended[pooling]["accuracy"]} for pooling in solved
        },
    }
    record("probe-speed", {**vars(args), "run": f"encoder {encoder.weights[:12]}"}, results)


if __name__ == "__main__":
    main()
