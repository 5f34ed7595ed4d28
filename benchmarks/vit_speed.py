"""Pretraining steps of MAE: this package, transformers' ViTMAEForPreTraining, and GEMM.

`small` is ViT-S/16 at 224 pixels, `micro` has the shape of CIFAR-10: 32 pixels, patch 4. Each worker is a process of
its own, as its user would run it, and they take turns. The same sizes, mask ratio, batch and optimizer; model FLOPs are
those of our products alone, counted by torch, three times the forward pass. `training` is `fit` on an array in memory,
with its start, crops, masks and logging; `their training` is the plain loop that a user of transformers would write on
the same array, with a `DataLoader` of two processes that crop with Pillow. `half` predicts half of the masked patches.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.loading import pillow_view
from benchmarks.record import record
from benchmarks.turns import ratio, take_turns
from clustermim.data import from_arrays
from clustermim.models.backbones import decoder_shape
from clustermim.models.masking import draw_from, predict_part, random_mask
from clustermim.models.mim import MaskedAutoencoder
from clustermim.models.vit import SIZES, ViT
from clustermim.pretraining import Architecture, MaskedBatch, Masking, Objective, make_task, masked_loss
from clustermim.targets import PixelTarget, TargetOptions
from clustermim.training import Schedule, adamw, fit, parameter_groups
from clustermim.training.devices import keep_freed_memory
from clustermim.training.parts import backward_in_parts, count_parts

RATIO = 0.75
GEMM = 2048  # side of the square matrices of the peak


class Case(NamedTuple):
    """A model of a named size, its images, and how many steps are a turn."""

    name: str
    side: int
    patch: int
    batch: int
    steps: int

    @property
    def images(self) -> tuple[int, int, int, int]:
        return self.batch, 3, self.side, self.side

    @property
    def patches(self) -> int:
        return (self.side // self.patch) ** 2


CASES = {"small": Case("small", 224, 16, 16, 1), "micro": Case("micro", 32, 4, 256, 16)}


def ours(case: Case, fraction: float = 0.0) -> Callable[[], None]:
    """Steps as `clustermim pretrain` does them, reading aside."""
    from clustermim.data.statistics import ChannelStats

    keep_freed_memory()  # as open_fabric does
    model, images = make_model(case), torch.rand(case.images)
    target = PixelTarget(case.patch, 3, (0.5,) * 3, (0.25,) * 3, normalize=True)
    stats = ChannelStats((0.5,) * 3, (0.25,) * 3)
    optimizer = adamw(parameter_groups(model), 1e-4)
    draw = draw_from(torch.Generator().manual_seed(0), case.batch)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    parts = count_parts(weights, case.batch)

    def work() -> None:
        for _ in range(case.steps):
            mask = random_mask(draw, case.patches, RATIO)
            mask = predict_part(mask, draw, fraction) if fraction else mask
            shares = [(1 / parts, part) for part in MaskedBatch(images, None, mask, target(images)).split(parts)]
            backward_in_parts(lambda part: masked_loss(model, part, target, stats), shares, weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return work


def training(case: Case) -> Callable[[], None]:
    """As many steps of a whole training, on an array of images in memory."""
    options = Architecture(case.name, case.patch), Masking(), TargetOptions(normalize_pixels=True), Objective()
    task = make_task(from_arrays(make_array(case)), "pixels", *options)
    schedule = Schedule(epochs=1, batch_size=case.batch, warmup_epochs=0, device="cpu")
    return lambda: fit(task, schedule) and None


def make_array(case: Case) -> NDArray[np.uint8]:
    """Images (n, 3, H, W) of one turn."""
    shape = (case.steps * case.batch, 3, case.side, case.side)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


class PillowArray(Dataset[Any]):
    """Views of an array of images, as normalised floats."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> torch.Tensor:
        image = Image.fromarray(self.images[row].transpose(1, 2, 0))
        return (pillow_view(image, image.width) / 255 - 0.5) / 0.25


def their_training(case: Case) -> Callable[[], None]:
    """As many steps of a plain loop with transformers' model."""
    loader = DataLoader(PillowArray(make_array(case)), case.batch, shuffle=True, num_workers=2, persistent_workers=True)
    step = their_step(case)

    def work() -> None:
        for images in loader:
            step(images)

    return work


def theirs(case: Case) -> Callable[[], None]:
    """Steps with transformers' model, which masks by itself."""
    step, images = their_step(case), torch.rand(case.images)

    def work() -> None:
        for _ in range(case.steps):
            step(images)

    return work


def their_step(case: Case) -> Callable[[torch.Tensor], None]:
    """A step of transformers' model on a batch."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    size = SIZES[case.name]
    decoder_width, decoder_depth, decoder_heads = decoder_shape(size.decoder)
    config = ViTMAEConfig(
        image_size=case.side,
        patch_size=case.patch,
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

    def step(images: torch.Tensor) -> None:
        model(pixel_values=images).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gemm() -> Callable[[], None]:
    """A large product of matrices: what the machine can do."""
    left, right = torch.rand(GEMM, GEMM), torch.rand(GEMM, GEMM)
    return lambda: [left @ right for _ in range(8)] and None


def make_model(case: Case) -> MaskedAutoencoder:
    """MAE of a named size."""
    encoder = ViT.of_size(case.name, (case.side, case.side), case.patch)
    return MaskedAutoencoder(encoder, *decoder_shape(encoder.decoder), 3 * case.patch**2)


def count_flops(case: Case) -> float:
    """Floating-point operations of a step: the forward pass as torch counts it, and twice as much backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model, counter = make_model(case), FlopCounterMode(display=False)
    mask = random_mask(draw_from(torch.Generator(), case.batch), case.patches, RATIO)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():  # the counter does not know the CPU's fused attention
        model(torch.rand(case.images), mask)
    return 3.0 * counter.get_total_flops()


def summarize(case: Case, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians of turns, ratios of neighbouring turns; the share of the peak is that of both at their best."""
    rates = {name: case.batch * case.steps / statistics.median(times) for name, times in seconds.items()}
    flops, step, peak = count_flops(case), seconds["clustermim"], 8 * 2 * GEMM**3 / min(seconds["gemm"]) / 1e9
    found: dict[str, Any] = {
        "images_per_second": {name: round(rate, 2) for name, rate in rates.items() if name != "gemm"},
        "times_faster": round(ratio(seconds["transformers"], step), 3),
        "gemm_gflops": round(peak, 1),
        "model_gflops_per_step": round(flops / 1e9, 1),
        "share_of_gemm_peak": round(flops * case.steps / min(step) / 1e9 / peak, 3),
    }
    if "training" in seconds:
        found["training_times_faster"] = round(ratio(seconds["their training"], seconds["training"]), 3)
        found["training_to_step"] = round(ratio(step, seconds["training"]), 3)
        found["half_times_faster"] = round(ratio(step, seconds["half"]), 3)
    return found | {"seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()}}


def main() -> None:
    """Take turns, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=CASES, default="small")
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    case = CASES[args.model]
    workers = {"clustermim": partial(ours, case), "transformers": partial(theirs, case), "gemm": gemm}
    if args.model == "micro":
        workers |= {"training": partial(training, case), "their training": partial(their_training, case)}
        workers |= {"half": partial(ours, case, 0.5)}
    seconds = take_turns(workers, args.turns)
    record(f"vit-speed-{args.model}", {**case._asdict(), "turns": args.turns}, summarize(case, seconds))


if __name__ == "__main__":
    main()
