"""A shuffled sample of patches with what is known of them, from one pass over as many images as its size allows."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from clustermim.data.cache import cache_folder, fingerprint_of, write_cached
from clustermim.data.source import Source
from clustermim.distributed import rank, world_size
from clustermim.errors import DataError
from clustermim.patches import grid_size, patchify
from clustermim.progress import log_info, track

if TYPE_CHECKING:
    from clustermim.tokenizers.space import Space

READ = 256  # images read at a time
FEWEST = 8  # patches an image, at least: a huge source need not be read whole for a small sample
LAYOUT = 1  # part of the name of a sample that is kept: raise it when the same name would mean other numbers
ARRAYS = ("features", "positions", "patches", "sums", "images")


@dataclass
class Sample:
    """What is known of some patches, and the sums of it over every patch of the images they come from."""

    features: Tensor  # (n, D) float32; without a teacher the pixels, uint8
    positions: Tensor  # (n,) int64, places on the grid
    patches: Tensor  # (n, p·p·C) uint8, the pixels
    sums: Tensor  # (N, D) float64, by place on the grid; zeros without a teacher
    images: int

    def __len__(self) -> int:
        return len(self.positions)


def draw_sample(space: Space, source: Source, max_patches: int, seed: int) -> Sample:
    """At most `max_patches` random patches of a source: all of them, or equally many of each image read.

    On several ranks each draws its share from its own images. Only what is kept stays in memory.
    """
    teacher, side = space.teacher, space.patch_size
    rows, columns = grid_size(*source.shape[1:], side)
    share, images, per_image = plan_sample(source, side, max_patches)
    count, size, width = rows * columns, images * per_image, side**2 * source.shape[0]
    generator = torch.Generator().manual_seed(seed + rank())
    patches, positions = torch.empty(size, width, dtype=torch.uint8), torch.empty(size, dtype=torch.long)
    features = patches if teacher is None else torch.empty(size, teacher.dim)
    sums = torch.zeros(count, features.shape[1], dtype=torch.float64)
    order = torch.randperm(size, generator=generator)  # shuffled as they arrive: no second copy
    batches = source.batches(READ, seed=seed, rank=rank(), world_size=world_size())
    read = 0
    for batch in track(batches, "reading patches", total=-(-images // READ)):
        some = batch.images[: images - read]
        chosen = torch.arange(count).expand(len(some), -1)  # (B, per_image)
        if per_image < count or teacher is not None:
            chosen = torch.rand(len(some), count, generator=generator).argsort(1)[:, :per_image]
        places = order[read * per_image : (read + len(some)) * per_image]
        patches[places] = _gather(patchify(some, side), chosen)
        positions[places] = chosen.flatten()
        if teacher is not None:
            found = space.describe(some)  # (B, N, D)
            sums += found.double().sum(0)
            features[places] = _gather(found, chosen)
        read += len(some)
        if read == images:
            break
    if not read:
        raise DataError(f"{source.spec} gave no image to take patches from")
    filled = order[: read * per_image].sort().values if read < images else slice(None)  # some could not be read
    features, positions, patches = (kept[filled][:share] for kept in (features, positions, patches))
    return Sample(features, positions, patches, sums, read)


def plan_sample(source: Source, patch_size: int, max_patches: int) -> tuple[int, int, int]:
    """This rank's part of a sample: its patches at most, the images they come from, and the patches of each."""
    rows, columns = grid_size(*source.shape[1:], patch_size)
    share = -(-max_patches // world_size())
    images = -(-len(source) // world_size())
    per_image = min(rows * columns, max(FEWEST, share // max(images, 1)))
    return share, min(images, -(-share // per_image)), per_image


def _gather(values: Tensor, chosen: Tensor) -> Tensor:
    """The rows (B · m, D) of values (B, N, D) at places (B, m)."""
    return values.gather(1, chosen[:, :, None].expand(-1, -1, values.shape[2])).flatten(0, 1)


def cached_sample(space: Space, source: Source, max_patches: int, seed: int) -> Sample:
    """As `draw_sample`, but read from the cache folder when its teacher saw this data before."""
    assert space.teacher is not None
    whose = [space.teacher.spec, space.teacher.version(), space.image_mean_weight, source.fingerprint]
    origin = [*whose, space.patch_size, max_patches, seed, rank(), world_size()]
    path = cache_folder() / "teacher-features" / f"{fingerprint_of(json.dumps([LAYOUT, *origin]))}.npz"
    sample = _load(path)
    if sample is None:
        sample = draw_sample(space, source, max_patches, seed)
        _save(path, sample)
    return sample


def _save(path: Path, sample: Sample) -> None:
    """Keep a sample; a folder that cannot be written costs time only."""
    arrays = {name: np.asarray(getattr(sample, name)) for name in ARRAYS}

    def write(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]

    try:
        write_cached(path, write)
    except DataError as error:
        log_info(f"warning: the teacher's features are not kept for another time: {error}")


def _load(path: Path) -> Sample | None:
    """What was kept, or None if it is not there whole."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            features, positions, patches, sums, images = (torch.from_numpy(arrays[name]) for name in ARRAYS)
            return Sample(features, positions, patches, sums, int(images))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
