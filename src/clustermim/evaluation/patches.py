"""Frozen features of patches, and the classes that masks give them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clustermim.data import Batch, Source, to_float
from clustermim.data.source import IGNORED
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation.features import Encode
from clustermim.evaluation.labels import check_any
from clustermim.models.encoder import Encoder
from clustermim.progress import track, warn_skipped


class Patches(NamedTuple):
    """One row a patch."""

    values: Tensor  # (n, D) float32
    labels: Tensor  # (n,) int64
    images: Tensor  # (n,) int64, which image it is of


def patch_features(encode: Encode, images: Tensor, device: torch.device) -> Tensor:
    """Patch features (B, N, D) of images; a network computes on the device, other functions get images of the CPU."""
    cpu = torch.device("cpu")
    tokens = encode(to_float(images.to(device if isinstance(encode, nn.Module) else cpu)))
    if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[1] < 2:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ConfigError(f"the encoder gave {shape}, not tokens (B, 1 + N, D) with the class token first")
    values = tokens[:, 1:].float().to(cpu if device.type == "mps" else device)  # mps has no float64
    if bad := int((~torch.isfinite(values)).sum()):
        what = f"{bad} of {values.numel()} patch features are NaN or infinite"
        raise RunError(f"{what}: the encoder is damaged or its training diverged; take an earlier checkpoint")
    return values


def patch_grid(encode: Encode, patches: int, source: Source) -> tuple[int, int]:
    """Rows and columns of so many patches: those of an encoder, or what fits the images."""
    height, width = source.shape[1:]
    rows = encode.grid[0] if isinstance(encode, Encoder) else max(1, round((patches * height / width) ** 0.5))
    grid = rows, patches // rows
    if grid[0] * grid[1] != patches or height % grid[0] or width % grid[1]:
        raise ConfigError(f"the encoder gave {patches} patches, which are no grid of images of {height}×{width} pixels")
    return grid


def majority(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """The class of most pixels of each patch, (B, N), of masks (B, H, W); of equals the first, ignored ones last."""
    height, width = masks.shape[1] // grid[0], masks.shape[2] // grid[1]
    pixels = masks.reshape(-1, grid[0], height, grid[1], width).permute(0, 1, 3, 2, 4)
    pixels = pixels.flatten(3).flatten(1, 2)  # (B, N, pixels of a patch)
    last = 1 + int(masks.max().clamp(min=0))  # stands for ignored pixels
    places = torch.where(pixels < 0, last, pixels)
    counts = torch.zeros(*pixels.shape[:2], last + 1, dtype=torch.int32, device=masks.device)
    best = counts.scatter_add_(2, places, torch.ones_like(places, dtype=torch.int32)).argmax(dim=2)
    return torch.where(best == last, IGNORED, best)


def draw_patches(
    encode: Encode, source: Source, most: int, batch_size: int, seed: int, device: torch.device
) -> Patches:
    """At most so many random patches of a source with masks; those whose pixels mostly have no class are left out.

    Images without a drawn patch are not encoded.
    """
    assert source.masks is not None
    count = patches_of(encode, source, device)
    total = len(source) * count
    drawn = np.random.default_rng(seed).choice(total, min(most, total), replace=False, shuffle=False)
    drawn.sort()
    among = np.zeros(len(source), dtype=np.bool_)
    among[drawn // count] = True
    starts = np.searchsorted(drawn, np.arange(len(source) + 1) * count)  # (images + 1,), where an image's begin
    found, seen = list[Patches](), 0
    total_batches = -(-int(among.sum()) // batch_size)
    for batch in track(source.batches(batch_size, among=among), "patch features", total=total_batches):
        values = patch_features(encode, batch.images, device)  # (B, N, D)
        seen += len(values)
        masks = source.masks.read(batch.indices.numpy()).to(values.device).long()  # (B, H, W)
        labels = majority(masks, patch_grid(encode, values.shape[1], source)).flatten()  # (B·N,)
        rows = _rows(batch, drawn, starts, count).to(values.device)
        rows = rows[labels[rows] >= 0]
        images = batch.indices.to(values.device)[rows // count]
        found.append(Patches(values.flatten(0, 1)[rows], labels[rows], images))
    check_any(source, seen)
    warn_skipped(source.skipped)
    patches = Patches(*map(torch.cat, zip(*found, strict=True)))
    if not len(patches.labels):
        raise DataError(f"the masks of {source.spec} give no patch a class: their values are classes, 255 is none")
    return patches


def patches_of(encode: Encode, source: Source, device: torch.device) -> int:
    """How many patches an image has."""
    return patch_features(encode, torch.zeros(1, *source.shape), device).shape[1]


def _rows(batch: Batch, drawn: NDArray[np.int64], starts: NDArray[np.int64], count: int) -> Tensor:
    """The drawn patches of a batch, counted through it."""
    parts = [
        drawn[starts[image] : starts[image + 1]] - image * count + place * count
        for place, image in enumerate(batch.indices.tolist())
    ]
    return torch.from_numpy(np.concatenate(parts))
