"""What preparing a batch costs beside the training step it is for: micro on images of 32 pixels, patch 4.

Both are measured in the foreground, in turns; in training a thread prepares the next batch meanwhile.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from benchmarks.record import record, seconds
from clustermim.data import channel_stats, open_source
from clustermim.data.augment import Augment
from clustermim.models.mim import make_model
from clustermim.models.vit import ViT
from clustermim.pretraining import MaskedCollator, Masking, masked_loss
from clustermim.targets import PixelTarget
from clustermim.training import SeededBatches, adamw, parameter_groups
from clustermim.training.devices import keep_freed_memory

AUGMENTS: tuple[Augment, ...] = ("crop", "pad-crop", "none")


def main() -> None:
    """Turns of both, for each augmentation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="textures:?images=10000&grid=8&patch=4")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=30)
    args = parser.parse_args()
    keep_freed_memory()
    source = open_source(args.data)
    stats = channel_stats(source)
    channels, *size = source.shape
    encoder = ViT.of_size("micro", (size[0], size[1]), 4, channels)
    target = PixelTarget(4, channels, stats.mean, stats.std)
    model = make_model("mae", encoder, target.dim)
    optimizer = adamw(parameter_groups(model), 1e-4)
    results = {}
    for augment in AUGMENTS:
        batches = SeededBatches(source, args.batch, 0, MaskedCollator(encoder.grid, Masking()), augment).make(0, 0)
        next(batches)
        preparing, training = [], []
        for _ in range(args.turns):
            took, views = seconds(lambda batches=batches: next(batches))  # type: ignore[misc]
            preparing.append(took)

            def train(views: object = views) -> None:
                masked_loss(model, views, target, stats)["loss"].backward()  # type: ignore[arg-type]
                optimizer.step()
                optimizer.zero_grad()

            training.append(seconds(train)[0])
        prepare, work = statistics.median(preparing), statistics.median(training)
        results[augment] = {
            "prepare_ms": round(1e3 * prepare, 2),
            "step_ms": round(1e3 * work, 1),
            "share": round(prepare / (prepare + work), 4),
        }
    record("data-share", {**vars(args), "threads": torch.get_num_threads()}, results)


if __name__ == "__main__":
    main()
