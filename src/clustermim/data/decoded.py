"""Images that were decoded once: `clustermim data decode` keeps them as one array, and their source reads them there.

CLUSTERMIM_HOME/decoded/FINGERPRINT.npy    the images (n, C, H, W) uint8, read as they are needed
CLUSTERMIM_HOME/decoded/FINGERPRINT.json   the source's text, and the images that could not be read
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from clustermim.data.cache import cache_folder, write_cached
from clustermim.data.source import Batch, Rows, Source
from clustermim.errors import DataError

BATCH = 256  # images decoded at a time


class DecodedSource(Source):
    """The images of another source, read from an array; in every other way that source."""

    def __init__(self, source: Source, images: NDArray[np.uint8], skipped: dict[str, str], missing: list[int]) -> None:
        vars(self).update({name: getattr(source, name) for name in Source.__annotations__})
        self.source, self.images, self.skipped = source, images, skipped
        self._readable = np.ones(len(source), dtype=np.bool_)
        self._readable[missing] = False

    def __len__(self) -> int:
        return len(self.source)

    def read(self, indices: Rows) -> Batch:
        rows = self.rows(indices)
        rows = rows[self._readable[rows]]
        return self.batch(self.images[rows], rows)

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """The order of the source, so that a run is the same with and without the array."""
        return self.source.shuffle(seed)


def place_of(source: Source) -> Path:
    """Where the array of a source lies, or would lie."""
    return cache_folder() / "decoded" / f"{source.fingerprint}.npy"


def decoded_or_not(source: Source) -> Source:
    """The source, read from its array if there is one that fits."""
    path = place_of(source)
    try:
        images = np.load(path, mmap_mode="r")
        notes = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if images.shape == (len(source), *source.shape) and images.dtype == np.uint8:
            return DecodedSource(source, images, dict(notes["skipped"]), list(notes["missing"]))
    except (OSError, ValueError, EOFError, KeyError, TypeError):  # not there, or not what `write_decoded` wrote
        pass
    return source


def write_decoded(source: Source) -> Path:
    """Decode all images of a source into its array, which `open_source` reads from then on."""
    from clustermim.data.images import EncodedSource
    from clustermim.data.shards import ShardSource
    from clustermim.progress import log_info, track

    origin = getattr(source, "source", source)  # a view's
    if not isinstance(origin, EncodedSource):
        raise DataError(f"{source.spec} holds no image files: there is nothing to decode")
    if isinstance(origin, ShardSource):
        raise DataError(f"{source.spec} is streamed in an order of its own: unpack it to a folder to decode it ahead")
    path = place_of(source)
    needed, home = len(source) * math.prod(source.shape), cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if needed > free:
        raise DataError(
            f"{source.spec} needs {needed / 1e9:.1f} GB in {home}, where {free / 1e9:.1f} GB are free: choose a "
            "smaller ?size= or ?limit=, or set CLUSTERMIM_HOME to another disk"
        )
    log_info(f"decoding {len(source):,} images into {home}, {needed / 1e6:,.0f} MB")
    part = path.with_name(f".{path.stem}.partial.npy")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        images = open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(source), *source.shape))
        missing = np.ones(len(source), dtype=np.bool_)
        for batch in track(source.batches(BATCH), "decoding", total=-(-len(source) // BATCH)):
            images[batch.indices.numpy()] = batch.images.numpy()
            missing[batch.indices.numpy()] = False
        images.flush()
        notes = {"spec": source.spec, "skipped": source.skipped, "missing": np.flatnonzero(missing).tolist()}
        write_cached(path.with_suffix(".json"), (json.dumps(notes, indent=1) + "\n").encode())
        part.replace(path)  # last: with it the array counts
    finally:
        part.unlink(missing_ok=True)
    return path
