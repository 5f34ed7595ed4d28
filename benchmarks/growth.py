"""How cost grows: k-means and tokenizing with patches, clusters and dimension; a training step with tokens and batch.

Also the images a second of pretraining by torchrun on one and two processes. Every number is a median of turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import record, seconds
from clustermim.data import from_arrays, open_source
from clustermim.data.source import to_float
from clustermim.data.statistics import ChannelStats
from clustermim.models.masking import draw_from, random_mask
from clustermim.models.mim import make_model
from clustermim.models.vit import ViT
from clustermim.pretraining import MaskedBatch, masked_loss
from clustermim.targets import PixelTarget
from clustermim.tokenizers import KMeansTokenizer
from clustermim.training import adamw, parameter_groups
from clustermim.training.devices import keep_freed_memory

PER_IMAGE = 64  # patches of an image
PATCHES, CLUSTERS, PATCH_SIZES = (12_800, 25_600, 51_200, 102_400), (50, 200, 800, 3200), (4, 8, 16)
BASE = {"patches": 51_200, "k": 200, "patch_size": 8}
TOKENS, BATCHES = (16, 64, 144, 256), (16, 64, 256)
RANKS = ((1, 1), (1, 2), (2, 1))  # processes and threads of each


def tokenizing(turns: int) -> Iterator[dict[str, Any]]:
    """Seconds of fitting and of tokenizing, one of the three sizes changing at a time."""
    images = {size: read(f"textures:?images={PATCHES[-1] // PER_IMAGE}&grid=8&patch={size}") for size in PATCH_SIZES}
    sizes = [
        BASE | {name: value}
        for name, all_ in zip(BASE, (PATCHES, CLUSTERS, PATCH_SIZES), strict=True)
        for value in all_
    ]
    for size in sizes:
        some, fits, calls = images[size["patch_size"]][: size["patches"] // PER_IMAGE], [], []
        floats = to_float(some)
        for seed in range(turns):
            tokenizer = KMeansTokenizer(size["k"], size["patch_size"], max_patches=size["patches"], seed=seed)
            fits.append(seconds(lambda tokenizer=tokenizer, some=some: tokenizer.fit(from_arrays(some.numpy())))[0])
            calls.append(seconds(lambda tokenizer=tokenizer, floats=floats: tokenizer(floats))[0])
        dimension = 3 * size["patch_size"] ** 2
        yield {"patches": size["patches"], "k": size["k"], "dimension": dimension, **medians(fit=fits, tokenize=calls)}


def training(turns: int) -> Iterator[dict[str, Any]]:
    """Seconds of a step of micro, patch 4, by tokens of an image and by images of a batch."""
    for tokens, batch in [(tokens, 64) for tokens in TOKENS] + [(64, batch) for batch in BATCHES]:
        step = make_step(tokens, batch)
        step()
        yield {"tokens": tokens, "batch": batch, **medians(step=[seconds(step)[0] for _ in range(3 * turns)])}


def make_step(tokens: int, batch: int) -> Callable[[], None]:
    """A step as `clustermim pretrain` does it."""
    side = 4 * round(tokens**0.5)
    encoder, grey = ViT.of_size("micro", (side, side), 4), (0.5,) * 3
    target, stats = PixelTarget(4, 3, grey, grey), ChannelStats(grey, grey)
    model = make_model("mae", encoder, target.dim)
    optimizer, images, generator = (
        adamw(parameter_groups(model), 1e-4),
        torch.rand(batch, 3, side, side),
        torch.Generator(),
    )

    def step() -> None:
        views = MaskedBatch(images, None, random_mask(draw_from(generator, batch), tokens, 0.75))
        masked_loss(model, views, target, stats)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ranks(images: int) -> Iterator[dict[str, Any]]:
    """Images a second of pretraining by torchrun, one batch of 256 shared out among the processes."""
    options = "--target pixels --patch-size 4 --epochs 2 --batch-size 256 --device cpu --augment none"
    for processes, threads in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "clustermim"]
            data = ["--data", f"textures:?images={images}&grid=8&patch=4", "--out", f"{folder}/run"]
            command = [sys.executable, "-m", *torchrun, "pretrain", *options.split(), *data]
            subprocess.run(
                command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=True, capture_output=True
            )
            found = json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))["results"]
        yield {"processes": processes, "threads": threads, "images_per_second": found["images_per_second"]}


def read(data: str) -> Tensor:
    """All images of a source."""
    source = open_source(data)
    return source.read(range(len(source))).images


def medians(**times: list[float]) -> dict[str, float]:
    return {f"{name}_seconds": round(statistics.median(values), 4) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--images", type=int, default=4096, help="of the pretraining by torchrun")
    parser.add_argument("--quick", action="store_true", help="one turn, and no torchrun")
    args = parser.parse_args()
    turns = 1 if args.quick else args.turns
    keep_freed_memory()
    results = {"kmeans": list(tokenizing(turns)), "step": list(training(turns))}
    results["ranks"] = [] if args.quick else list(ranks(args.images))
    record("growth", {"model": "micro", "turns": turns, "images": args.images}, results)


if __name__ == "__main__":
    main()
