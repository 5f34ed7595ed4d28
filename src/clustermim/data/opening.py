"""Open a source by its text or from an object, and bring it to the number, size and channels that were asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data.cache import fingerprint_of, verifying
from clustermim.data.source import Batch, Rows, Source, name_in_memory
from clustermim.data.spec import OPENERS, Spec, parse_spec
from clustermim.data.transforms import convert_channels, resize_center_crop, resize_masks
from clustermim.errors import DataError


def open_source(data: object, **options: object) -> Source:
    """The images that a text such as `folder:images/train?size=64` names, or that an object holds.

    Args:
        data: a text, the path of a folder, an .npz, .parquet or .tar file, a torch or 🤗 Dataset (which holds images,
            (image, label) or {"image": …, "label": …}), or a source. Arrays go to `from_arrays`.
        options: `limit=1000`, `subset="validation"` (a fixed tenth) or `"train"` (the rest), `size=64` or `(48, 80)`,
            `channels=1`, and what else the text may have after its "?".

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
        try:
            source = function(spec)
        except OSError as error:
            raise DataError(f"{spec.text:.200}: {error.strerror or error}") from error
    else:
        from clustermim.data.objects import open_object

        spec = Spec("dataset", path=type(data).__name__, options=asked).check(("image", "label"))
        source = open_object(data, spec)
    channels, size = spec.channels or source.shape[0], spec.size or source.shape[1:]
    if source is data or spec.limit is not None or spec.subset or source.shape != (channels, *size):
        source = View(source, spec)
    if spec.options:
        text = "&".join(sorted(f"{key}={value}" for key, value in spec.options.items() if key != "masks"))
        source.fingerprint = fingerprint_of(source.fingerprint, text)
    if spec.scheme == "source":
        source.spec = f"{spec.path}{'&' if '?' in spec.path else '?'}{spec.query}"
    elif spec.scheme == "dataset":
        source.spec = name_in_memory("dataset", source)
    if verifying.get():
        source.readable(range(len(source)))
    return source


class View(Source):
    """Some images of another source, resized and converted as the options subset, limit, size and channels say.

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
        rows = np.arange(len(source))
        if spec.subset:
            held_out = np.random.default_rng(1).permutation(len(source)) < len(source) // 10
            rows = rows[held_out == (spec.subset == "validation")]
        self.positions = rows[np.sort(np.random.default_rng(0).permutation(len(rows))[: spec.limit])]
        self.labels = None if source.labels is None else source.labels[self.positions]
        if (masks := source.masks) is not None:
            self.masks = masks._replace(read=lambda rows: resize_masks(masks.read(self._rows(rows)), self.shape[1:]))

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, indices: Rows) -> Batch:
        return self._view(self.source.read(self._rows(indices)), self.shape[1:])

    def read_crops(self, indices: Rows, draws: Callable[[int], Tensor], size: tuple[int, int] | None = None) -> Batch:
        size = size or self.shape[1:]
        return self._view(self.source.read_crops(self._rows(indices), draws, size), size)

    def readable(self, indices: Rows) -> NDArray[np.bool_]:
        return self.source.readable(self._rows(indices))

    def contents(self) -> str:
        return self.source.contents()

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """All positions in the order of the source."""
        places = np.full(len(self.source), -1)
        places[self.positions] = np.arange(len(self))
        order = places[self.source.shuffle(seed)]
        return order[order >= 0]

    def _rows(self, indices: Rows) -> NDArray[np.int64]:
        return self.positions[np.asarray(indices, dtype=np.int64)]

    def _view(self, batch: Batch, size: tuple[int, int]) -> Batch:
        """A batch of the source as it is seen here."""
        images = resize_center_crop(convert_channels(batch.images, self.shape[0]), size)
        # The source may have left images out, so the positions here are found anew from those it gave.
        places = np.searchsorted(self.positions, batch.indices.numpy())
        return Batch(images, batch.labels, torch.from_numpy(places))
