"""A shuffled sample of a teacher's patch features, from one pass over as many images as its size allows."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from clustermim.data.cache import cache_folder, fingerprint_of, write_cached
from clustermim.data.source import Source, to_float
from clustermim.distributed import rank, world_size
from clustermim.errors import DataError
from clustermim.patches import grid_size, patchify
from clustermim.progress import log_info, track
from clustermim.teachers import Teacher
from clustermim.tokenizers.sampling import READ, plan_sample

LAYOUT = 1  # part of the name of kept features: raise it when the same name would mean other numbers
ARRAYS = ("features", "positions", "patches", "sums", "images")


@dataclass
class FeatureSample:
    """Features of some patches, and the sums of those of every patch of the images they come from."""

    features: Tensor  # (n, D) float32
    positions: Tensor  # (n,) int64, places on the grid
    patches: Tensor  # (n, p·p·C) uint8, the pixels
    sums: Tensor  # (N, D) float64, by place on the grid
    images: int

    def __len__(self) -> int:
        return len(self.positions)


def add_image_mean(features: Tensor, weight: float) -> Tensor:
    """Features (B, N, D) of patches, each with so many times the mean of its image added."""
    return features + weight * features.mean(1, keepdim=True) if weight else features


def draw_features(
    teacher: Teacher, source: Source, patch_size: int, max_patches: int, seed: int, image_mean_weight: float = 0.0
) -> FeatureSample:
    """At most `max_patches` random patches of a source, as `draw_patches` takes them; its share on several ranks.

    Features are those `in_context`. Only the ones that are kept stay in memory; those of the other patches go into the
    sums.
    """
    grid = grid_size(*source.shape[1:], patch_size)
    share, images, per_image = plan_sample(source, patch_size, max_patches)
    count, size = grid[0] * grid[1], images * per_image
    generator = torch.Generator().manual_seed(seed + rank())
    features, positions = torch.empty(size, teacher.dim), torch.empty(size, dtype=torch.long)
    patches = torch.empty(size, patch_size**2 * source.shape[0], dtype=torch.uint8)
    sums = torch.zeros(count, teacher.dim, dtype=torch.float64)
    order = torch.randperm(size, generator=generator)  # shuffled as they arrive: no second copy
    batches = source.batches(READ, seed=seed, rank=rank(), world_size=world_size())
    read = 0
    for batch in track(batches, "features of the teacher", total=-(-images // READ)):
        some = batch.images[: images - read]
        found = add_image_mean(teacher(to_float(some), grid), image_mean_weight)  # (B, N, D)
        sums += found.double().sum(0)
        chosen = torch.rand(len(some), count, generator=generator).argsort(1)[:, :per_image]  # (B, per_image)
        places = order[read * per_image : (read + len(some)) * per_image]
        for kept, values in ((features, found), (patches, patchify(some, patch_size))):
            taken = values.gather(1, chosen[:, :, None].expand(-1, -1, values.shape[2]))  # (B, per_image, …)
            kept[places] = taken.flatten(0, 1)
        positions[places] = chosen.flatten()
        read += len(some)
        if read == images:
            break
    if not read:
        raise DataError(f"{source.spec} gave no image to take features from")
    filled = order[: read * per_image].sort().values if read < images else slice(None)  # some could not be read
    features, positions, patches = (kept[filled][:share] for kept in (features, positions, patches))
    return FeatureSample(features, positions, patches, sums, read)


def cached_features(
    teacher: Teacher, source: Source, patch_size: int, max_patches: int, seed: int, image_mean_weight: float = 0.0
) -> FeatureSample:
    """As `draw_features`, but read from the cache folder when this teacher saw this data before."""
    whose = [teacher.spec, teacher.version(), image_mean_weight, source.fingerprint]
    origin = [*whose, patch_size, max_patches, seed, rank(), world_size()]
    path = cache_folder() / "teacher-features" / f"{fingerprint_of(json.dumps([LAYOUT, *origin]))}.npz"
    sample = _load(path)
    if sample is None:
        sample = draw_features(teacher, source, patch_size, max_patches, seed, image_mean_weight)
        _save(path, sample)
    return sample


def _save(path: Path, sample: FeatureSample) -> None:
    """Keep a sample; a folder that cannot be written costs time only."""
    arrays = {name: np.asarray(getattr(sample, name)) for name in ARRAYS}

    def write(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]

    try:
        write_cached(path, write)
    except DataError as error:
        log_info(f"warning: the teacher's features are not kept for another time: {error}")


def _load(path: Path) -> FeatureSample | None:
    """What was kept, or None if it is not there whole."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            features, positions, patches, sums, images = (torch.from_numpy(arrays[name]) for name in ARRAYS)
            return FeatureSample(features, positions, patches, sums, int(images))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
