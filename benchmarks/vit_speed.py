"""Pretraining steps of MAE with a ViT-S/16 at 224 pixels: this package, transformers' ViTMAEForPreTraining, and GEMM.

Each is a process of its own, as its user would run it, and they take turns. The same sizes, mask ratio, batch and
optimizer; model FLOPs are those of our products alone, counted by torch, three times the forward pass.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.record import record
from benchmarks.turns import ratio, take_turns
from clustermim.models.backbones import decoder_shape
from clustermim.models.masking import draw_from, random_mask
from clustermim.models.mim import MaskedAutoencoder
from clustermim.models.vit import SIZES, ViT
from clustermim.pretraining import MaskedBatch, masked_loss
from clustermim.targets import PixelTarget
from clustermim.training import adamw, parameter_groups
from clustermim.training.devices import keep_freed_memory

PATCH, SIDE, RATIO = 16, 224, 0.75
PATCHES = (SIDE // PATCH) ** 2
GEMM = 2048  # side of the square matrices of the peak


def ours(name: str, batch: int) -> Callable[[], None]:
    """A step as `clustermim pretrain` does it, reading aside."""
    from clustermim.data.statistics import ChannelStats

    keep_freed_memory()  # as open_fabric does
    model, images = make_model(name), torch.rand(batch, 3, SIDE, SIDE)
    target = PixelTarget(PATCH, 3, (0.5,) * 3, (0.25,) * 3, normalize=True)
    stats = ChannelStats((0.5,) * 3, (0.25,) * 3)
    optimizer = adamw(parameter_groups(model), 1e-4)
    generator = torch.Generator().manual_seed(0)

    def work() -> None:
        views = MaskedBatch(images, None, random_mask(draw_from(generator, batch), PATCHES, RATIO))
        masked_loss(model, views, target, stats)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


def theirs(name: str, batch: int) -> Callable[[], None]:
    """The same with transformers' model, which masks by itself."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    size = SIZES[name]
    decoder_width, decoder_depth, decoder_heads = decoder_shape(size.decoder)
    config = ViTMAEConfig(
        hidden_size=size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        decoder_hidden_size=decoder_width,
        decoder_num_hidden_layers=decoder_depth,
        decoder_num_attention_heads=decoder_heads,
        decoder_intermediate_size=4 * decoder_width,
        mask_ratio=RATIO,
        norm_pix_loss=True,
        attn_implementation="sdpa",
    )
    model: Any = ViTMAEForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    images = torch.rand(batch, 3, SIDE, SIDE)

    def work() -> None:
        model(pixel_values=images).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


def gemm() -> Callable[[], None]:
    """A large product of matrices: what the machine can do."""
    left, right = torch.rand(GEMM, GEMM), torch.rand(GEMM, GEMM)
    return lambda: [left @ right for _ in range(8)] and None


def make_model(name: str) -> MaskedAutoencoder:
    """MAE of a named size."""
    encoder = ViT.of_size(name, (SIDE, SIDE), PATCH)
    return MaskedAutoencoder(encoder, *decoder_shape(encoder.decoder), 3 * PATCH * PATCH)


def count_flops(name: str, batch: int) -> float:
    """Floating-point operations of a step: the forward pass as torch counts it, and twice as much backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model, counter = make_model(name), FlopCounterMode(display=False)
    mask = random_mask(draw_from(torch.Generator(), batch), PATCHES, RATIO)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():  # the counter does not know the CPU's fused attention
        model(torch.rand(batch, 3, SIDE, SIDE), mask)
    return 3.0 * counter.get_total_flops()


def main() -> None:
    """Take turns, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="small")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    workers = {
        "clustermim": partial(ours, args.model, args.batch),
        "transformers": partial(theirs, args.model, args.batch),
        "gemm": gemm,
    }
    seconds = take_turns(workers, args.turns)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    peak = 8 * 2 * GEMM**3 / medians["gemm"] / 1e9
    flops = count_flops(args.model, args.batch)
    results = {
        "images_per_second": {name: round(args.batch / medians[name], 2) for name in ("clustermim", "transformers")},
        "times_faster": round(ratio(seconds["transformers"], seconds["clustermim"]), 3),
        "gemm_gflops": round(peak, 1),
        "model_gflops_per_step": round(flops / 1e9, 1),
        "share_of_gemm_peak": round(flops / medians["clustermim"] / 1e9 / peak, 3),
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
    }
    record(f"vit-speed-{args.model}", vars(args), results)


if __name__ == "__main__":
    main()
