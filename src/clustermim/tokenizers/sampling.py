"""A shuffled sample of patches, kept as bytes, drawn from as many images as its size allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from clustermim.data.source import Source
from clustermim.distributed import rank, world_size
from clustermim.errors import DataError
from clustermim.patches import grid_size, patchify
from clustermim.progress import track

READ = 256  # images read at a time
FEWEST = 8  # patches an image, at least: a huge source need not be read whole for a small sample


class PatchSample:
    """Patches (n, d) as uint8; slices come out as the float vectors that `embed` makes of them."""

    def __init__(self, patches: Tensor, images: int, embed: Callable[[Tensor], Tensor]) -> None:
        self.patches = patches
        self.images = images
        self.embed = embed

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, rows: slice) -> Tensor:
        return self.embed(self.patches[rows])

    def chunks(self, size: int = 8192) -> Iterator[slice]:
        """Slices that cover the sample."""
        return (slice(start, start + size) for start in range(0, len(self), size))


def draw_patches(
    source: Source, patch_size: int, max_patches: int, seed: int, embed: Callable[[Tensor], Tensor]
) -> PatchSample:
    """At most `max_patches` random patches of a source: all of them, or equally many of each image read.

    On several ranks each draws its share from its own images.
    """
    channels = source.shape[0]
    share, images, per_image = plan_sample(source, patch_size, max_patches)
    generator = torch.Generator().manual_seed(seed + rank())
    patches = torch.empty(images * per_image, patch_size * patch_size * channels, dtype=torch.uint8)
    places = torch.randperm(len(patches), generator=generator)  # shuffled as they arrive: no second copy
    batches = source.batches(READ, seed=seed, rank=rank(), world_size=world_size())
    read = filled = 0
    for batch in track(batches, "reading patches", total=-(-images // READ)):
        some = _some_patches(batch.images[: images - read], patch_size, per_image, generator)
        patches[places[filled : filled + len(some)]] = some
        filled += len(some)
        read = filled // per_image
        if read == images:
            break
    if not filled:
        raise DataError(f"{source.spec} gave no image to take patches from")
    if filled < len(patches):  # some images could not be read
        patches = patches[places[:filled].sort().values]
    return PatchSample(patches[:share], read, embed)


def plan_sample(source: Source, patch_size: int, max_patches: int) -> tuple[int, int, int]:
    """This rank's part of a sample: its patches at most, the images they come from, and the patches of each."""
    rows, columns = grid_size(*source.shape[1:], patch_size)
    share = -(-max_patches // world_size())
    images = -(-len(source) // world_size())
    per_image = min(rows * columns, max(FEWEST, share // max(images, 1)))
    return share, min(images, -(-share // per_image)), per_image


def _some_patches(images: Tensor, patch_size: int, per_image: int, generator: torch.Generator) -> Tensor:
    """`per_image` different random patches of each image, (B · per_image, d) uint8."""
    patches = patchify(images, patch_size)  # (B, N, d)
    batch, count, width = patches.shape
    if per_image < count:
        chosen = torch.rand(batch, count, generator=generator).argsort(1)[:, :per_image]
        patches = patches.gather(1, chosen[:, :, None].expand(-1, -1, width))
    return patches.reshape(-1, width)
