"""Images that were decoded once: `clustermim data decode` keeps them as one array, and their source reads them there.

CLUSTERMIM_HOME/decoded/FINGERPRINT.npy    the images (n, C, H, W) uint8, read as they are needed
CLUSTERMIM_HOME/decoded/FINGERPRINT.json   the source's text, and the images that could not be read
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from clustermim.data.cache import cache_folder, write_cached
from clustermim.data.source import Batch, Source

BATCH = 256  # images decoded at a time

Track = Callable[[Iterable[Batch], int], Iterable[Batch]]


class DecodedSource(Source):
    """The images of another source, read from an array; in every other way that source."""

    def __init__(self, source: Source, images: NDArray[np.uint8], skipped: dict[str, str], missing: list[int]) -> None:
        self.source, self.images = source, images
        self.spec, self.shape, self.labels = source.spec, source.shape, source.labels
        self.class_names, self.fingerprint, self.skipped = source.class_names, source.fingerprint, skipped
        self._readable = np.ones(len(source), dtype=np.bool_)
        self._readable[missing] = False

    def __len__(self) -> int:
        return len(self.source)

    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        rows = np.asarray(indices, dtype=np.int64)
        rows = rows[self._readable[rows]]
        return Batch(torch.from_numpy(self.images[rows]), self.take_labels(rows), torch.from_numpy(rows))

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


def write_decoded(source: Source, track: Track) -> Path:
    """Decode all images of a source into its array; `track` shows the work."""
    path = place_of(source)
    part = path.with_name(f".{path.stem}.partial.npy")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        images = open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(source), *source.shape))
        missing = np.ones(len(source), dtype=np.bool_)
        for batch in track(source.batches(BATCH), -(-len(source) // BATCH)):
            images[batch.indices.numpy()] = batch.images.numpy()
            missing[batch.indices.numpy()] = False
        images.flush()
        notes = {"spec": source.spec, "skipped": source.skipped, "missing": np.flatnonzero(missing).tolist()}
        write_cached(path.with_suffix(".json"), (json.dumps(notes, indent=1) + "\n").encode())
        part.replace(path)  # last: with it the array counts
    finally:
        part.unlink(missing_ok=True)
    return path
