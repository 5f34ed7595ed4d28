"""Decode image files, and the source of images that are kept as files (in a folder, a table or a shard)."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn, TypeVar

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from clustermim.data.source import Batch, Rows, Source
from clustermim.data.spec import Spec
from clustermim.data.transforms import cover_box
from clustermim.errors import DataError

T = TypeVar("T")

MAX_PIXELS = 100_000_000  # of one image; more is taken for a decompression bomb
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

_JPEG = b"\xff\xd8\xff"  # how a file of this format begins
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")
_THREADS = min(8, os.cpu_count() or 1)
_TURNS = {  # what brings an image of such an EXIF orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(
    data: bytes, name: str, *, channels: int | None = None, size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """One image file as uint8 (C, H, W), upright as its EXIF orientation says; `name` appears in errors.

    `channels` is 1, 3, or None for 1 if the file is grey and 3 if not. Transparent pixels are laid on white,
    16-bit pixels scaled to 8. With `size` (height, width) the image is resized to cover it and its centre cut out.
    """
    try:
        image = _open_fast(data, channels, size)
        if image is None:
            image = _open_header(data)
            image.load()
            image = _turn(flatten_image(image), _orientation(image))
        return fit_image(image, channels, size)
    except Exception as error:  # decoders raise nearly every kind of exception on damaged files
        raise DataError(f"{name}: {_reason(data, error)}") from error


def fit_image(image: Image.Image, channels: int | None, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """A Pillow image of mode L or RGB as uint8 (C, H, W), of so many channels, resized to cover `size` and cropped."""
    if channels is not None:
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        top, left, height, width = cover_box(image.height, image.width, size)
        box = (left, top, min(left + width, image.width), min(top + height, image.height))
        image = image.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=box)
    pixels = np.asarray(image)
    return pixels[None].copy() if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def count_channels(data: bytes, name: str) -> int:
    """1 if the image file is grey, otherwise 3; reads no more than its header."""
    try:
        return 1 if _open_header(data).mode in _GREY_MODES else 3
    except Exception as error:
        raise DataError(f"{name}: {_reason(data, error)}") from error


def _open_fast(data: bytes, channels: int | None, size: tuple[int, int] | None) -> Image.Image | None:
    """A usual JPEG, decoded no larger than `size` needs; None for all that Pillow should look at."""
    if not data.startswith(_JPEG):
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        _check_pixels(height, width)
        if space not in ("Gray", "YCbCr"):
            return None
        orientation, least = 1, (0, 0)
        if b"Exif\0\0" in data:
            orientation = _orientation(Image.open(io.BytesIO(data), formats=("JPEG",)))
        if size is not None:
            wanted = size[::-1] if orientation >= 5 else size  # 5 to 8 swap height and width
            scale = max(wanted[0] / height, wanted[1] / width)
            least = (math.ceil(height * scale), math.ceil(width * scale))
        # The luma channel of a JPEG is the grey image in ITU-R 601 weights.
        color = "GRAY" if space == "Gray" or channels == 1 else "RGB"
        pixels = simplejpeg.decode_jpeg(data, color, min_height=least[0], min_width=least[1])
    except ValueError as error:
        if "premature" in str(error).lower():  # Pillow lets some of these pass, their lower part grey
            raise
        return None
    return _turn(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels), orientation)


def _orientation(image: Image.Image) -> int:
    """How the image is stored, 1 to 8 as in EXIF; 1 is upright."""
    with contextlib.suppress(Exception):  # damaged notes of the camera spoil no pixels
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
        return value if value in _TURNS else 1
    return 1


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def _open_header(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=_FORMATS)
    _check_pixels(image.height, image.width)
    return image


def _check_pixels(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise Image.DecompressionBombError


def flatten_image(image: Image.Image) -> Image.Image:
    """Any mode to L or RGB: 16 bit scaled to 8, transparent pixels laid on white."""
    grey = image.mode in _GREY_MODES
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no fixed range; convert the file to 8 or 16 bit")
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("L" if grey else "RGB")


def _reason(data: bytes, error: Exception) -> str:
    """In one line, why a file could not be decoded."""
    if not data:
        return "the file is empty"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS:,} pixels, refused unread; make it smaller first"
    if isinstance(error, UnidentifiedImageError):
        return "not a JPEG, PNG, WebP, BMP or TIFF image, or damaged at its beginning"
    return f"damaged or of an unknown kind ({' '.join(str(error).split()) or type(error).__name__})"


class EncodedSource(Source):
    """Images kept as encoded files, decoded by several threads when read.

    Size, channels and on_bad_image come from `spec`; without `channels`, the source is grey if all files of `sample`,
    positions that are cheap to fetch together, are. `name` gives the name of an image by position, for messages.
    `fetcher` makes some positions ready and gives a function from position to bytes, which is called from several
    threads at once and may raise OSError or DataError.
    """

    def __init__(
        self,
        spec: Spec,
        count: int,
        name: Callable[[int], str],
        fetcher: Callable[[Sequence[int]], Callable[[int], bytes]],
        labels: NDArray[np.int64] | None,
        class_names: Sequence[str],
        fingerprint: str,
        sample: Sequence[int],
    ) -> None:
        self.spec, self.labels, self.class_names = spec.text, labels, tuple(class_names)
        self.fingerprint, self.skipped = fingerprint, {}
        self.name, self.fetcher = name, fetcher
        self._count, self._skip, channels = count, spec.skips_bad_images, spec.channels
        if channels is None:  # a grey source keeps each file's own, so that one in colour is noticed
            fetch = fetcher(sample)
            channels = 3 if any(self._attempt(count_channels, fetch, row) == 3 for row in sample) else None
        self._decode = partial(decode_image, channels=channels, size=spec.size)
        first = self._first_readable()
        self.shape = (first.shape[0], first.shape[1], first.shape[2])

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Rows) -> Batch:
        rows = self.rows(indices).tolist()
        return self.decode(rows, self.fetcher(rows))

    def decode(self, rows: Sequence[int], fetch: Callable[[int], bytes]) -> Batch:
        """A batch of images whose bytes are ready."""
        with ThreadPoolExecutor(_THREADS) as pool:
            results = list(pool.map(lambda row: self._attempt(self._decode, fetch, row), rows))
        kept, images = [], []
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, DataError):
                name = self.name(row)
                self.skipped[name] = str(result).removeprefix(f"{name}: ")
            else:
                if result.shape != self.shape:
                    self._refuse_shape(row, result.shape)
                kept.append(row)
                images.append(result)
        # numpy stacks small uint8 arrays many times faster than torch
        stacked = np.stack(images) if images else np.empty((0, *self.shape), np.uint8)
        return self.batch(stacked, np.array(kept, np.int64))

    def _attempt(self, use: Callable[[bytes, str], T], fetch: Callable[[int], bytes], row: int) -> T | DataError:
        """What `use` makes of a file; its error if bad images are skipped."""
        name = self.name(row)
        try:
            return use(fetch(row), name)
        except (OSError, DataError) as error:
            reason = f"{name}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            if not self._skip:
                raise DataError(reason) from error
            return DataError(reason)

    def _first_readable(self) -> NDArray[np.uint8]:
        for row in range(len(self)):
            result = self._attempt(self._decode, self.fetcher([row]), row)
            if not isinstance(result, DataError):
                return result
        raise DataError(f"{self.spec}: none of its {len(self)} images can be read; the last: {result}")

    def _refuse_shape(self, row: int, shape: tuple[int, ...]) -> NoReturn:
        (channels, height, width), side, where = shape, min(self.shape[1:]), self.name(row)
        if channels != self.shape[0]:
            raise DataError(f"{where}: in colour among grey images; add channels=3 or channels=1 to {self.spec}")
        raise DataError(  # patches of the usual sizes fit a multiple of 32
            f"{where}: {height}×{width} pixels where the first image has {self.shape[1]}×{self.shape[2]}; "
            f"add ?size={side // 32 * 32 or side} to bring all to one size"
        )


def by_group(starts: NDArray[np.int64], rows: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Each group that positions lie in, and these positions; group g begins at starts[g]."""
    groups = np.searchsorted(starts, rows, side="right") - 1
    return ((group, np.asarray(rows)[groups == group].tolist()) for group in np.unique(groups).tolist())


def sample_bytes(fetch: Callable[[int], bytes], sample: Sequence[int]) -> list[bytes]:
    """The bytes of some images for a fingerprint; those that cannot be read are an error, or skipped, later."""
    found = []
    for row in sample:
        found.append(b"")
        with contextlib.suppress(OSError):
            found[-1] = fetch(row)
    return found


def evenly_spaced(count: int, most: int = 256) -> list[int]:
    """At most `most` of the positions 0…count−1, evenly spaced, the first and last among them."""
    return sorted({round(position) for position in np.linspace(0, count - 1, min(count, most))})
