"""What a pretraining would take on many GPUs, reckoned from counted operations and bytes; no GPU was measured.

A step computes while gradients travel, so that it takes the longer of the two. Assumed are the speed of a GPU, the
share of it that a training reaches, and the speed of the network between GPUs; all are in the record. The cores that
must read files for one GPU follow from the images a second of `loading.json`, which were measured.
"""

from __future__ import annotations

import json

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_memory import PATCH, RATIO, SIDE, TARGET
from benchmarks.record import HERE, record
from clustermim.models.masking import draw_from, random_mask
from clustermim.models.mim import make_model
from clustermim.models.vit import ViT

FLOPS, SHARE = 312e12, 0.35  # of an A100 in bf16, and what of it a training reaches
NETWORK = 25e9  # bytes a second that a GPU sends and gets
IMAGES, EPOCHS, BATCH = 1_281_167, 100, 4096  # of ImageNet-1K
GPUS = (1, 8, 64, 256)
COUNTED = 4  # images whose operations are counted
CROPS = (80, 224, False)  # kilobytes of a file, pixels of a crop, no other process


def count(size: str) -> tuple[float, int]:
    """Operations of a step for one image, forward and backward; parameters."""
    with torch.device("meta"):
        model = make_model("mae", ViT.of_size(size, (SIDE, SIDE), PATCH, 3), TARGET)
        images = torch.empty(COUNTED, 3, SIDE, SIDE)
    mask = random_mask(draw_from(torch.Generator(), COUNTED), (SIDE // PATCH) ** 2, RATIO).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(images, mask).square().mean().backward()
    return counter.get_total_flops() / COUNTED, sum(parameter.numel() for parameter in model.parameters())


def read_rate() -> float:
    """Images of 80 kB that one core turns into crops of 224 pixels a second."""
    loading = json.loads((HERE / "loading.json").read_text(encoding="utf-8"))
    (found,) = [row for row in loading["results"] if (row["kilobytes_of_a_file"], row["size"], row["busy"]) == CROPS]
    return float(found["images_per_second"]["ours"]) / int(loading["config"]["workers"])


def reckon(size: str) -> dict[str, float]:
    """Hours of ImageNet-1K by the number of GPUs, days of a billion images once, and what a step sends."""
    flops, parameters = count(size)
    row = {
        "gflops_of_an_image": round(flops / 1e9, 1),
        "reading_cores_of_a_gpu": round(FLOPS * SHARE / flops / read_rate(), 1),
    }
    for gpus in GPUS:
        share = (gpus - 1) / gpus
        computing = BATCH * flops / (gpus * FLOPS * SHARE)
        sending = 2 * share * 4 * parameters / NETWORK  # each number goes round twice: to be added up, and back
        row[f"hours_on_{gpus}"] = round(IMAGES * EPOCHS / BATCH * max(computing, sending) / 3600, 2)
        if gpus == GPUS[-1]:
            row["days_of_a_billion"] = round(1e9 / BATCH * max(computing, sending) / 86400, 2)
            row["sending_of_computing"] = round(sending / computing, 2)
            row["gigabytes_ddp"] = round(16 * parameters / 1e9, 1)  # weights, gradients and two moments
            row["gigabytes_fsdp"] = round(16 * parameters / gpus / 1e9, 3)
    return row


def main() -> None:
    assumed = {"gpu_flops": FLOPS, "share_reached": SHARE, "network_bytes_a_second": NETWORK}
    settings = {"image": SIDE, "patch_size": PATCH, "mask_ratio": RATIO, "batch_size": BATCH, "epochs": EPOCHS}
    record("scaling", {**settings, **assumed}, {size: reckon(size) for size in ("small", "base", "large", "huge")})


if __name__ == "__main__":
    main()
