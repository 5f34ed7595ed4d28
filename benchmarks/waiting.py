"""How long pretraining waits for data: micro at 64 pixels, patch 8, random crops from a folder of JPEGs of 500×375.

The share is the one that `summary.json` of every run has (`data_share`). Once with nothing beside it, and once beside
processes that load every core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.loading import burning, mean_bytes, write_images
from benchmarks.record import record
from clustermim.pretraining import pretrain

SIZE, PATCH = 64, 8


def main() -> None:
    """Pretrain idle and busy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "images"
        folder.mkdir()
        write_images(folder, args.images)
        for busy in (False, True):
            run = Path(place) / f"busy-{busy}"
            schedule = {"epochs": args.epochs, "batch_size": args.batch, "device": "cpu", "workers": args.workers}
            with burning(args.workers * busy):
                pretrain(f"folder:{folder}?size={SIZE}", "pixels", patch_size=PATCH, out=run, **schedule)
            found = json.loads((run / "summary.json").read_text(encoding="utf-8"))["results"]
            results.append({"busy": busy, **{name: found[name] for name in ("data_share", "images_per_second")}})
        size_of_file = mean_bytes(folder)
    record("waiting", {**vars(args), "bytes_of_a_file": size_of_file}, results)


if __name__ == "__main__":
    main()
