"""Whole numbers of images that take long to compute, kept in the cache as they come: work that was killed goes on."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from clustermim.cost import add_cost, measure_cost
from clustermim.data.cache import cache_folder, fingerprint_of, write_cached
from clustermim.data.source import Source
from clustermim.errors import DataError
from clustermim.progress import log_info
from clustermim.reading import read_bytes

SECONDS = 10.0  # of work that one file holds; work that takes less is not kept
DAYS = 30  # after which numbers that nobody asked for are deleted

Numbers = Callable[[Tensor, Callable[[], Tensor]], Tensor]  # from images (B,) and how to compute them: numbers (B, …)


class Remembered:
    """Numbers of some images, the same whenever they are computed; `measure_cost` counts those that are known, too.

    Args:
        source: where the images are.
        what: texts that say what the numbers are, and of which version.
    """

    def __init__(self, source: Source, *what: str) -> None:
        place = cache_folder() / "numbers"
        self.folder = place / fingerprint_of(source.fingerprint, source.contents(), *what)
        self.places = torch.full((len(source),), -1)  # of each image among the values that are known
        self.values: list[Tensor] = []
        self.costs: list[Tensor] = []  # flops and CPU seconds of each
        self.new: list[tuple[Tensor, Tensor, Tensor]] = []  # images, values and CPU seconds
        self.flops: float | None = None  # of an image, the same for all; of work that will not be kept, nobody asks
        self.begun = self.since = time.monotonic()
        _delete_old(place)
        for path in sorted(self.folder.glob("*.safetensors")):
            self._read(path)
        if known := int((self.places >= 0).sum()):
            self.known, self.cost = torch.cat(self.values), torch.cat(self.costs)
            log_info(f"of {known:,} of {len(source):,} images this is known from before: {self.folder}")

    def __call__(self, images: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """The numbers (B, …) of these images (B,): known, or computed and kept for the next time."""
        places = self.places[images]
        if len(images) and bool((places >= 0).all()):
            add_cost(*self.cost[places].sum(0).tolist())
            return self.known[places].long()
        cpu, share = time.process_time(), 1 / max(1, len(images))
        if self.flops is None and time.monotonic() - self.begun > SECONDS / 10:
            with measure_cost() as cost:
                found = compute()
            self.flops = cost["flops"] * share
        else:
            found = compute()
        self.new.append((images, found.int(), torch.full((len(images),), (time.process_time() - cpu) * share)))
        if time.monotonic() - self.since > SECONDS:
            self.keep()
        return found

    def keep(self) -> None:
        """Write what is new; a cache that cannot be written costs time only."""
        if self.flops is None:  # no batch was begun after the first second
            return
        if self.new:
            images, values, seconds = (torch.cat(parts).contiguous() for parts in zip(*self.new, strict=True))
            costs = torch.stack([torch.full_like(seconds, self.flops), seconds], 1).double()
            tensors = {"images": images, "values": values, "costs": costs}
            content = save(tensors, {"sha256": _checksum(*tensors.values())})
            with contextlib.suppress(DataError):
                write_cached(self.folder / f"{secrets.token_hex(8)}.safetensors", content)
        self.new, self.since = [], time.monotonic()

    def _read(self, path: Path) -> None:
        try:
            content = read_bytes(path)
            found = load(content)
            images, values, costs = found["images"], found["values"], found["costs"]
            if _checksum(images, values, costs).encode() not in content:
                raise ValueError("its bytes are not those that were written")
            self.places[images] = torch.arange(len(images)) + sum(map(len, self.values))
            self.values.append(values)
            self.costs.append(costs)
        except (OSError, ValueError, KeyError, IndexError, RuntimeError, SafetensorError):
            log_info(f"{path} is damaged and is made again")
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def remembered(source: Source, *what: str) -> Iterator[Remembered]:
    """Numbers of images while they are computed; the last ones are kept too, where this took long enough."""
    known = Remembered(source, *what)
    start = time.monotonic()
    try:
        yield known
    finally:
        if time.monotonic() - start > SECONDS:
            known.keep()


def _checksum(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _delete_old(place: Path) -> None:
    for folder in place.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > DAYS * 86400:
                shutil.rmtree(folder)
