"""Open a source by its text or from an object, and bring it to the number, size and channels that were asked for.

`clustermim data decode` keeps decoded images as one array, CLUSTERMIM_HOME/decoded/FINGERPRINT.npy.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from clustermim.data.cache import cache_folder, fingerprint_of, write_cached
from clustermim.data.images import EncodedSource
from clustermim.data.source import Batch, Rows, Source, name_in_memory
from clustermim.data.spec import OPENERS, Spec, parse_spec
from clustermim.data.transforms import convert_channels, resize_center_crop
from clustermim.errors import DataError
from clustermim.progress import log_info, track

DECODE_BATCH = 256  # images decoded at a time


def open_source(data: object, **options: object) -> Source:
    """The images that a text such as `folder:images/train?size=64` names, or that an object holds.

    Args:
        data: a text, the path of a folder, an .npz, .parquet or .tar file, a torch or 🤗 Dataset (which holds images,
            (image, label) or {"image": …, "label": …}), or a source. Arrays go to `from_arrays`.
        options: `limit=1000`, `size=64` or `(48, 80)`, `channels=1`, and what else the text may have after its "?".

    >>> open_source("digits", limit=100)
    <View digits/train?limit=100: 100 images of 1×8×8, 10 classes>
    """
    asked = {
        name: "x".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
        for name, value in options.items()
        if value is not None
    }
    if isinstance(data, Source):
        if not asked:
            return data
        source, spec = data, Spec("source", path=data.spec, options=asked).check(())
    elif isinstance(data, (str, Path)):
        spec = parse_spec(data, asked)
        function = OPENERS[spec.scheme].function
        if isinstance(function, str):
            module, name = function.split(":")
            function = cast(Callable[[Spec], Source], getattr(importlib.import_module(module), name))
        source = function(spec)
    else:
        from clustermim.data.objects import open_object

        spec = Spec("dataset", path=type(data).__name__, options=asked).check(("image", "label"))
        source = open_object(data, spec)
    channels, size = spec.channels or source.shape[0], spec.size or source.shape[1:]
    if source is data or spec.limit is not None or source.shape != (channels, *size):
        source = View(source, spec)
    if spec.options:
        text = "&".join(sorted(f"{key}={value}" for key, value in spec.options.items()))
        source.fingerprint = fingerprint_of(source.fingerprint, text)
    if spec.scheme == "source":
        source.spec = f"{spec.path}{'&' if '?' in spec.path else '?'}{spec.query}"
    elif spec.scheme == "dataset":
        source.spec = name_in_memory("dataset", source)
    return decoded_or_not(source)


class View(Source):
    """Some images of another source, resized and converted as the options limit, size and channels say.

    `positions` are those of the images in `source`. They are random but always the same, and in the source's
    order: the first images of a folder would all be of its first class. A smaller limit gives a subset.
    """

    def __init__(self, source: Source, spec: Spec) -> None:
        vars(self).update({name: getattr(source, name) for name in Source.__annotations__})
        self.source, self.spec = source, spec.text
        channels = spec.channels or source.shape[0]
        if channels != source.shape[0] and source.shape[0] not in (1, 3):
            raise DataError(f"{self.spec}: channels={channels} cannot be had from {source.shape[0]} channels")
        self.shape = (channels, *(spec.size or source.shape[1:]))
        self.positions = np.sort(np.random.default_rng(0).permutation(len(source))[: spec.limit])
        self.labels = None if source.labels is None else source.labels[self.positions]

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, indices: Rows) -> Batch:
        return self._view(self.source.read(self.positions[np.asarray(indices, dtype=np.int64)]))

    def stream(self, seed: int | None, among: NDArray[np.bool_] | None) -> Iterator[Any]:
        """As the source gives them: it knows in which order they are read fast."""
        kept = np.zeros(len(self.source), dtype=np.bool_)
        kept[self.positions if among is None else self.positions[among]] = True
        return self.source.stream(seed, kept)

    def load(self, chunk: list[Any]) -> Batch:
        return self._view(self.source.load(chunk))

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """All positions in the order of the source."""
        places = np.full(len(self.source), -1)
        places[self.positions] = np.arange(len(self))
        order = places[self.source.shuffle(seed)]
        return order[order >= 0]

    def _view(self, batch: Batch) -> Batch:
        """A batch of the source as it is seen here."""
        images = resize_center_crop(convert_channels(batch.images, self.shape[0]), self.shape[1:])
        # The source may have left images out, so the positions here are found anew from those it gave.
        places = np.searchsorted(self.positions, batch.indices.numpy())
        return Batch(images, batch.labels, torch.from_numpy(places))


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
    """Decode all images of a source into its array (n, C, H, W), which `open_source` reads from then on.

    Beside it lies a .json with the text of the source and the images that could not be read.
    """
    origin = getattr(source, "source", source)  # a view's
    if not isinstance(origin, EncodedSource):
        raise DataError(f"{source.spec} holds no image files: there is nothing to decode")
    if type(origin).stream is not Source.stream:
        raise DataError(f"{source.spec} is streamed in an order of its own: unpack it to a folder to decode it ahead")
    path, count = place_of(source), len(source)
    needed, home = count * math.prod(source.shape), cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    if needed > (free := shutil.disk_usage(home).free):
        raise DataError(
            f"{source.spec} needs {needed / 1e9:.1f} GB in {home}, where {free / 1e9:.1f} GB are free: choose a "
            "smaller ?size= or ?limit=, or set CLUSTERMIM_HOME to another disk"
        )
    log_info(f"decoding {count:,} images into {home}, {needed / 1e6:,.0f} MB")
    path.parent.mkdir(exist_ok=True)
    part, missing = path.with_name(f".{path.stem}.partial.npy"), np.ones(count, dtype=np.bool_)
    try:
        images = open_memmap(part, mode="w+", dtype=np.uint8, shape=(count, *source.shape))
        for batch in track(source.batches(DECODE_BATCH), "decoding", total=-(-count // DECODE_BATCH)):
            images[batch.indices.numpy()] = batch.images.numpy()
            missing[batch.indices.numpy()] = False
        images.flush()
        notes = {"spec": source.spec, "skipped": source.skipped, "missing": np.flatnonzero(missing).tolist()}
        write_cached(path.with_suffix(".json"), (json.dumps(notes, indent=1) + "\n").encode())
        part.replace(path)  # last: with it the array counts
    finally:
        part.unlink(missing_ok=True)
    return path
