"""Images held as one array: `from_arrays`, `npz:PATH` and scikit-learn's `digits`."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clustermim.data.cache import cache_folder, fingerprint_of, write_cached
from clustermim.data.source import Batch, Rows, Source, name_in_memory
from clustermim.data.spec import Spec
from clustermim.errors import DataError
from clustermim.files import user_path

_IMAGE_KEYS = ("images", "x", "data")
_LABEL_KEYS = ("labels", "y")
_MOST_CLASSES = 1_000_000  # every class has a name and counters; a larger label is an id of something else
_CHANNELS: dict[str, Literal["first", "last"] | None] = {"nhwc": "last", "nchw": "first", "auto": None}
_MOST_CHANNELS = 4  # an axis this short is taken for channels when nothing is said


# What numpy raises on a damaged file; a header that names more numbers than there are is a MemoryError.
_DAMAGED = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    MemoryError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
)


class ArraySource(Source):
    """Images in an array (n, C, H, W), uint8 or uint16, in memory or memory-mapped.

    Classes without names are "0", "1", …; without `fingerprint` all pixels and labels are read once and hashed.
    """

    def __init__(
        self,
        spec: str,
        images: NDArray[Any],
        labels: NDArray[Any] | Sequence[int] | None = None,
        class_names: Sequence[str] = (),
        fingerprint: str | None = None,
    ) -> None:
        if images.dtype not in (np.uint8, np.uint16) or images.ndim != 4 or 0 in images.shape:
            raise DataError(
                f"{spec}: images must be a non-empty array (n, C, H, W) of uint8 or uint16, "
                f"not {images.dtype} {images.shape}"
            )
        self.dtype = np.uint16 if images.dtype == np.uint16 else np.uint8
        self.spec, self.images, self.skipped = spec, images, {}
        self.shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        self.labels, self.class_names = None, tuple(class_names)
        if labels is not None:
            self.labels, self.class_names = to_classes(spec, np.asarray(labels), len(images), class_names)
        self.fingerprint = fingerprint or fingerprint_of(images, *([] if self.labels is None else [self.labels]))

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: Rows) -> Batch:
        rows = self.rows(indices)
        return self.batch(self.images[rows], rows)


def from_arrays(
    images: Any,
    labels: Any = None,
    *,
    channels: Literal["first", "last"] | None = None,
    class_names: Sequence[str] = (),
) -> ArraySource:
    """A source of arrays or tensors in memory.

    Args:
        images: (n, H, W), (n, C, H, W) or (n, H, W, C); uint8, uint16 (65,535 is white), or float in [0, 1].
        labels: one whole number or text an image.
        channels: which axis of four is the channels; needed where both or neither has a length of 1 to 4.
        class_names: names of the classes 0, 1, …

    >>> from_arrays(np.zeros((5, 8, 8, 3), np.uint8), [0, 1, 0, 1, 0]).shape
    (3, 8, 8)
    """
    if channels not in ("first", "last", None):
        raise DataError(f'from_arrays: channels must be "first" or "last", not {channels!r}')
    pixels = to_nchw(to_whole(to_array(images, "images"), "from_arrays"), "from_arrays", channels)
    labels = None if labels is None else to_array(labels, "labels")
    source = ArraySource("from_arrays", pixels, labels, class_names)
    source.spec = name_in_memory("arrays", source)
    return source


def to_array(values: Any, what: str) -> NDArray[Any]:
    """An array, tensor or list as an array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} must be one array or tensor, all of one shape ({error})") from error
    if array.dtype == object or not array.ndim:
        raise DataError(f"{what} must be an array or tensor, not {type(values).__name__} of {array.dtype}")
    return array


def to_classes(
    where: str, labels: NDArray[Any], count: int, names: Sequence[str] = ()
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels (count,) as int64 and the names of the classes; labels that are texts name and number their classes."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (count,):
        raise DataError(f"{where}: {count} images need labels of shape ({count},), not {labels.shape}")
    if labels.dtype.kind == "U":
        found, numbers = np.unique(labels, return_inverse=True)
        return numbers.astype(np.int64), tuple(map(str, found))
    if labels.dtype.kind not in "iu":
        raise DataError(f"{where}: labels must be whole numbers, not {labels.dtype}; use labels.astype('int64')")
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise DataError(f"{where}: labels must be 0 or more, found {low}; leave them out if there are none")
    if high >= _MOST_CLASSES:
        raise DataError(f"{where}: label {high} is no number of a class; number the classes from 0")
    if len(names) and high >= len(names):
        raise DataError(f"{where}: label {high} is beyond the {len(names)} names of classes")
    return labels.astype(np.int64), tuple(map(str, names if len(names) else range(high + 1)))


def open_npz(spec: Spec) -> ArraySource:
    """Images and optional labels from an .npz file; see `to_whole` and `to_nchw` for what is accepted."""
    path = user_path(spec.path)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not a readable .npz file; save one with np.savez(path, images=…)")
    try:
        with np.load(path, allow_pickle=False) as file:  # arrays of other names are left unread
            images, labels = (next((file[k] for k in keys if k in file), None) for keys in (_IMAGE_KEYS, _LABEL_KEYS))
            class_names, found = file.get("class_names", ()), ", ".join(file.files) or "nothing"
    except (*_DAMAGED, NotImplementedError, RuntimeError) as error:  # also of a compression or password of others
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: holds Python objects, as from images of mixed size, which are not read; "
                "save images of one size as one uint8 array, or as files for folder:PATH?size=64"
            ) from error
        raise DataError(f"{path}: not a readable .npz file ({error})") from error
    if images is None:
        raise DataError(f"{path}: no array named images, x or data (found: {found}); save it as images=…")
    layout = _CHANNELS[spec.choice("layout", tuple(_CHANNELS), "auto")]
    images = to_nchw(to_whole(images, str(path)), spec.text, layout, "?layout=nchw or ?layout=nhwc")
    return ArraySource(spec.text, images, labels, tuple(map(str, class_names)))


def to_whole(images: NDArray[Any], where: str) -> NDArray[Any]:
    """Pixels as uint8: whole numbers must lie in 0…255, floats in [0, 1]. uint16 beyond 255 stays as it is."""
    if images.dtype == np.uint8 or (images.dtype == np.uint16 and images.max(initial=0) > 255):
        return images
    if images.dtype.kind == "b":
        return images.astype(np.uint8) * np.uint8(255)
    if images.dtype.kind not in "iuf" or not images.size:
        raise DataError(f"{where}: images are {images.dtype} of shape {images.shape}; convert them to uint8")
    if bad := int(images.size - np.isfinite(images).sum()):
        raise DataError(f"{where}: {bad} of {images.size} pixel values are NaN or infinite; replace them")
    low, high = images.min(), images.max()
    if images.dtype.kind == "f":
        if low < 0 or high > 1:
            raise DataError(
                f"{where}: float images must lie in [0, 1], found {low:g} to {high:g}; "
                "use images.round().astype('uint8') if they lie in 0…255, or rescale them"
            )
        images = np.rint(images * 255.0)
    elif low < 0 or high > 255:
        raise DataError(
            f"{where}: whole-number images must lie in 0…255, found {low} to {high}; "
            "rescale them, (images / images.max() * 255).astype('uint8')"
        )
    return images.astype(np.uint8)


def to_nchw(
    images: NDArray[Any],
    where: str,
    channels: Literal["first", "last"] | None,
    remedy: str = 'channels="first" or channels="last"',
) -> NDArray[Any]:
    """Images as (n, C, H, W). Of four axes, the channels are axis 1 or 3, whichever alone has length 1 to 4."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise DataError(f"{where}: images of shape {images.shape}; expected (n, H, W), (n, H, W, C) or (n, C, H, W)")
    if channels is None:
        first, last = images.shape[1] <= _MOST_CHANNELS, images.shape[3] <= _MOST_CHANNELS
        if first == last:
            raise DataError(f"{where}: cannot tell which axis of {images.shape} is channels; add {remedy}")
        channels = "first" if first else "last"
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if channels == "last" else images


def open_digits(spec: Spec) -> ArraySource:
    """scikit-learn's 1,797 handwritten digits, 8×8 grey: 1,437 train and 360 test, classes in proportion."""
    path = cache_folder() / "digits" / f"{spec.split}.npz"
    try:  # scikit-learn takes seconds to import
        with np.load(path, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"]
    except _DAMAGED:  # not there, or damaged
        images, labels = _make_digits(spec.split)
        with contextlib.suppress(DataError):  # a cache that cannot be written costs time only
            write_cached(path, lambda file: np.savez_compressed(file, images=images, labels=labels))
    return ArraySource(spec.text, images, labels)


def _make_digits(split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    rows = np.sort(train if split == "train" else test)
    return images[rows], labels[rows]
