"""Images of objects in memory: torch and 🤗 Datasets. (Arrays: `from_arrays`.)"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from clustermim.data.arrays import to_array, to_nchw, to_whole
from clustermim.data.cache import fingerprint_of
from clustermim.data.encoded import evenly_spaced
from clustermim.data.images import fit_image
from clustermim.data.source import Batch, Rows, Source
from clustermim.data.spec import Spec
from clustermim.data.tables import find_classes, find_columns, open_table
from clustermim.data.transforms import convert_channels, resize_center_crop
from clustermim.errors import DataError, format_error
from clustermim.progress import track


def open_object(data: object, spec: Spec) -> Source:
    """The images of a torch or 🤗 Dataset; a DataError for anything else."""
    library: Any = sys.modules.get("datasets")  # whoever has such an object has imported it
    iterable: tuple[type, ...] = (IterableDataset,)
    if library is not None:
        if isinstance(data, library.Dataset):
            return open_table(data, spec)
        if isinstance(data, library.DatasetDict):
            raise DataError(f"a DatasetDict holds several sets of images; give one: {', '.join(map(repr, data))}")
        iterable += (library.IterableDataset,)
    if isinstance(data, iterable):
        raise DataError(f"{spec.text}: an IterableDataset cannot be read by position; give one with a length")
    if isinstance(data, Dataset):
        return DatasetSource(data, spec)
    raise DataError(
        f"{type(data).__name__} is no source: give a text such as 'digits' or 'folder:PATH', a Path, a torch or "
        '🤗 Dataset; for arrays and tensors use clustermim.from_arrays(images, labels, channels="last")'
    )


class DatasetSource(Source):
    """Images of a map-style torch Dataset, whose items are an image, (image, label, …) or {"image": …, "label": …}.

    An image is a Pillow image, or a tensor or array that is uint8 or float in [0, 1]. Opening reads a sample, and of
    datasets without `targets` every label.
    """

    def __init__(self, dataset: Any, spec: Spec) -> None:
        self.dataset, self.spec, self._spec, self.skipped = dataset, spec.text, spec, {}
        if not hasattr(dataset, "__len__") or not len(dataset):
            raise DataError(f"{self.spec}: has no items, or does not say how many")
        first = self._image(0)
        if not np.array_equal(first, self._image(0)):
            raise DataError(f"{self.spec}: an item differs each time it is read; take its random transforms away")
        self.shape = (first.shape[0], first.shape[1], first.shape[2])
        self.dtype = np.uint16 if first.dtype == np.uint16 else np.uint8
        self.labels, self.class_names = self._find_labels()
        labels = b"" if self.labels is None else self.labels.tobytes()
        self.fingerprint = fingerprint_of(str(len(self)), labels, *map(self._image, evenly_spaced(len(self))))

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Rows) -> Batch:
        rows, images = self.rows(indices), []
        for row in rows.tolist():
            images.append(image := self._image(row))
            if image.shape != self.shape:
                raise DataError(
                    f"{self.spec}: item {row} has shape {image.shape} where the first has {self.shape}; "
                    "open it with size=… or channels=… to bring all to one shape"
                )
        return self.batch(np.array(images, self.dtype).reshape(-1, *self.shape), rows)

    def _item(self, row: int) -> tuple[Any, Any]:
        """Image and label, None without one."""
        try:
            item = self.dataset[row]
        except Exception as error:  # whatever someone else's code raises
            raise DataError(f"{self.spec}: item {row} cannot be read ({format_error(error)})") from error
        if isinstance(item, dict):
            image, label = find_columns(self._spec, list(item))
            return item[image], item.get(label)
        if isinstance(item, (tuple, list)):
            return item[0], item[1] if len(item) > 1 else None
        return item, None

    def _image(self, row: int) -> NDArray[Any]:
        image, channels, size = self._item(row)[0], self._spec.channels, self._spec.size
        if isinstance(image, Image.Image):
            return fit_image(image, channels, size)
        where = f"{self.spec}: item {row}"
        pixels = to_whole(to_array(image, where), where)
        # torch has channels first, whatever their number
        one = torch.tensor(to_nchw(pixels[None], where, "first" if isinstance(image, torch.Tensor) else None))
        one = convert_channels(one, channels or one.shape[1])
        return resize_center_crop(one, size or (one.shape[2], one.shape[3]))[0].numpy()

    def _find_labels(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
        values = getattr(self.dataset, "targets", None)
        if values is None or len(values) != len(self) or getattr(self.dataset, "target_transform", None) is not None:
            if self._item(0)[1] is None:
                return None, ()
            values = [self._item(row)[1] for row in track(range(len(self)), "reading labels", total=len(self))]
        names = getattr(self.dataset, "classes", ())
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            names = ()
        return find_classes(self.spec, [value.item() if hasattr(value, "item") else value for value in values], names)
