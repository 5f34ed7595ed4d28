"""Random resized crops from a folder of JPEGs of 500×375 pixels: ours against a `DataLoader` of Pillow's.

Both give bytes, with as many workers: threads here, processes there. The peer crops, resizes and flips as MAE's code
does, and is spared the conversion to normalised floats. Files are of two kinds: soft ones of about 30 kB, and fine ones
of about 80 kB, as large as photographs of this size are in ImageNet. Idle, and beside processes that load every core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
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
DETAILS = {"soft": (0.7, 90), "fine": (0.35, 94)}  # how fast contrast falls with the scale, and the JPEG's quality


def write_images(folder: Path, count: int, detail: str = "fine") -> None:
    """Images with detail at every scale, in two classes."""
    power, quality = DETAILS[detail]
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = np.zeros((375, 500, 3), np.float32)
        for scale in (4, 8, 16, 32, 64, 128, 250, 500):
            small = Image.fromarray(generator.integers(0, 256, (-(-3 * scale // 4), scale, 3), dtype=np.uint8))
            pixels += np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) / np.float32(scale**power)
        pixels = (pixels - pixels.min()) / np.ptp(pixels) * 255
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:05d}.jpg", quality=quality)


def pillow_view(image: Image.Image, size: int) -> torch.Tensor:
    """A random resized crop, flipped or not, as bytes (3, size, size): what a user would write."""
    top, left, tall, wide = random_box(torch.rand(4, TRIES).tolist(), image.height, image.width)
    image = image.crop((left, top, left + wide, top + tall)).resize((size, size), Image.Resampling.BICUBIC)
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class PillowFolder(Dataset[Any]):
    """Views of the files of a folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> torch.Tensor:
        return pillow_view(Image.open(self.files[row]).convert("RGB"), self.size)


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


def decoder(folder: Path, workers: int) -> Callable[[], None]:
    """The limit: every file of an epoch decoded whole by the same library, and nothing else done."""
    files = [path.read_bytes() for path in sorted(folder.glob("*/*.jpg"))]
    pool = ThreadPoolExecutor(workers)

    def decode(start: int) -> None:
        for data in files[start::workers]:
            simplejpeg.decode_jpeg(data, "RGB", fastdct=True, fastupsample=True)

    return lambda: list(pool.map(decode, range(workers))) and None


def burn() -> None:
    """Other work, for ever."""
    numbers = np.random.default_rng(0).random((300, 300))
    while True:
        numbers = np.tanh(numbers @ numbers / 300)


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """Other work in so many processes meanwhile."""
    others = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def mean_bytes(folder: Path) -> int:
    """The size of a file."""
    return round(statistics.mean(path.stat().st_size for path in folder.glob("*/*.jpg")))


def measure(folder: Path, size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Turns of ours, the peer and the limit; ratios are medians of neighbouring turns, with the lowest and highest."""
    given = (folder, size, args.batch, args.workers)
    ways = {"ours": partial(ours, *given), "pillow": partial(pillow, *given)}
    taken = take_turns({**ways, "decoding alone": partial(decoder, folder, args.workers)}, args.turns)
    ratios = sorted(slow / fast for slow, fast in zip(taken["pillow"], taken["ours"], strict=True))
    return {
        "images_per_second": {name: round(args.images / statistics.median(times)) for name, times in taken.items()},
        "ratio": round(ratio(taken["pillow"], taken["ours"]), 2),
        "ratio_spread": [round(ratios[0], 2), round(ratios[-1], 2)],
        "share_of_decoding_alone": round(1 / ratio(taken["ours"], taken["decoding alone"]), 2),
    }


def main() -> None:
    """Turns of all, for each size of a file and of a crop; idle and busy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    results = []
    for detail in DETAILS:
        with tempfile.TemporaryDirectory() as place:
            write_images(Path(place), args.images, detail)
            kilobytes = round(mean_bytes(Path(place)) / 1000)
            for busy, size in product((False, True), SIZES):
                with burning(args.workers * busy):
                    found = measure(Path(place), size, args)
                results.append({"kilobytes_of_a_file": kilobytes, "size": size, "busy": busy, **found})
                print(results[-1], flush=True)
    record("loading", vars(args), results)


if __name__ == "__main__":
    main()
