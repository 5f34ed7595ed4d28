"""Random resized crops from a folder of JPEGs of 500×375 pixels: ours against a `DataLoader` of Pillow's.

Both give bytes, with as many workers: threads here, processes there. The peer crops, resizes and flips as MAE's code
does, and is spared the conversion to normalised floats. `--busy` loads both cores with other work meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.record import record
from benchmarks.turns import ratio, take_turns
from clustermim.data import open_source
from clustermim.data.encoded import EncodedSource
from clustermim.data.randomness import ImageRandom
from clustermim.data.transforms import TRIES, random_box
from clustermim.training import SeededBatches

SIZES = (224, 64)


def write_images(folder: Path, count: int) -> None:
    """Images with as much detail at every scale, as photographs have, in two classes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = np.zeros((375, 500, 3))
        for scale in (4, 8, 16, 32, 64, 128, 250):
            small = Image.fromarray(generator.integers(0, 256, (-(-3 * scale // 4), scale, 3), dtype=np.uint8))
            pixels += np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) / scale**0.7
        pixels = (pixels - pixels.min()) / np.ptp(pixels) * 255
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:05d}.jpg", quality=90)


class PillowFolder(Dataset[Any]):
    """What a user would write."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> torch.Tensor:
        image = Image.open(self.files[row]).convert("RGB")
        top, left, tall, wide = random_box(torch.rand(4, TRIES).tolist(), image.height, image.width)
        image = image.crop((left, top, left + wide, top + tall))
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def pillow(folder: Path, size: int, batch: int, workers: int) -> Callable[[], None]:
    """One epoch of the peer."""
    torch.set_num_threads(1)
    loader = DataLoader(PillowFolder(folder, size), batch, True, num_workers=workers, persistent_workers=True)
    return lambda: consume(iter(loader))


def ours(folder: Path, size: int, batch: int, workers: int) -> Callable[[], None]:
    """One epoch of ours."""
    source = open_source(f"folder:{folder}?size={size}")
    assert isinstance(source, EncodedSource)
    source.workers = workers

    def view(found: Any, random: ImageRandom) -> torch.Tensor:
        images: torch.Tensor = found.images
        return images

    batches = SeededBatches(source, batch, 0, view, "crop")
    return lambda: consume(batches(0, 0))


def consume(batches: Iterator[torch.Tensor]) -> None:
    for images in batches:
        assert images.dtype == torch.uint8


def burn() -> None:
    """Other work, for ever."""
    numbers = np.random.default_rng(0).random((300, 300))
    while True:
        numbers = np.tanh(numbers @ numbers / 300)


def main() -> None:
    """Turns of both, for each size; idle and busy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_images(folder, args.images)
        size_of_file = sum(path.stat().st_size for path in folder.glob("*/*.jpg")) / args.images
        for busy in (False, True):
            others = [multiprocessing.Process(target=burn, daemon=True) for _ in range(args.workers * busy)]
            for other in others:
                other.start()
            for size in SIZES:
                ways = {"ours": partial(ours, folder, size, args.batch, args.workers)}
                ways["pillow"] = partial(pillow, folder, size, args.batch, args.workers)
                taken = take_turns(ways, args.turns)
                rates = {name: round(args.images / float(np.median(times))) for name, times in taken.items()}
                row = {"size": size, "busy": busy, "images_per_second": rates}
                results.append({**row, "ratio": round(ratio(taken["pillow"], taken["ours"]), 2)})
                print(results[-1], flush=True)
            for other in others:
                other.kill()
    record("loading", {**vars(args), "bytes_of_a_file": round(size_of_file)}, results)


if __name__ == "__main__":
    main()
