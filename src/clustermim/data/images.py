"""Decode image files: whole, or only the part and the resolution that is needed."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from clustermim.data.transforms import cover_box, random_box, resize_center_crop
from clustermim.errors import DataError

MAX_PIXELS = 100_000_000  # of one image; more is taken for a decompression bomb
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

Name = str | Callable[[], str]  # of a file, or what tells it when it is needed
Pixels = NDArray[Any]  # uint8 or uint16
Least = Callable[[int, int], tuple[int, int]]  # height and width of a file → those that are enough

_JPEG = b"\xff\xd8\xff"  # how a file of this format begins
_TIFF = (b"II*\0", b"MM\0*")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N")
MASK_MODES = ("P", "L", "1")  # one value a pixel, of at most 8 bits
_TURNS: dict[int, Callable[[Pixels], Pixels]] = {  # what brings an image of such an EXIF orientation upright
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels.swapaxes(0, 1)[::-1, ::-1],
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}


def decode_image(
    data: bytes,
    name: Name,
    *,
    channels: int | None = None,
    size: tuple[int, int] | None = None,
    dtype: type[np.generic] | None = None,
) -> Pixels:
    """One image file as (C, H, W), upright as its EXIF orientation says; `name` appears in errors.

    `channels` is 1, 3, or None for as many as the file has; `dtype` is uint8, uint16, or None for that of the file.
    Transparent pixels are laid on white. With `size` the image is resized to cover it and its centre cut out.
    """

    def least(height: int, width: int) -> tuple[int, int]:
        scale = 1.0 if size is None else max(size[0] / height, size[1] / width)
        return math.ceil(height * scale), math.ceil(width * scale)

    with _named(data, name):
        return _cover(_decode(data, channels, dtype, least)[0], size)


def decode_crop(
    data: bytes,
    name: Name,
    draws: Sequence[Sequence[float]],
    mirrored: bool,
    *,
    size: tuple[int, int],
    channels: int | None = None,
    dtype: type[np.generic] | None = None,
) -> Pixels:
    """A random box of one image file, resized to `size`: (h, w, C). `draws` (4, TRIES) choose it."""

    def least(height: int, width: int) -> tuple[int, int]:
        _, _, tall, wide = random_box(draws, height, width)
        factor = min(tall / size[0], wide / size[1])
        shrink = next(power for power in (8, 4, 2, 1) if power <= factor or power == 1)  # others decode slowly
        return -(-height // shrink), -(-width // shrink)

    with _named(data, name):
        pixels, (height, width) = _decode(data, channels, dtype, least, fast=True)
        scales = pixels.shape[0] / height, pixels.shape[1] / width  # below 1 where less was decoded
        box = random_box(draws, height, width)
        top, left, tall, wide = (round(part * scales[axis % 2]) for axis, part in enumerate(box))
        return resize(pixels[top : top + tall, left : left + wide], size, mirrored)


def resize(pixels: Pixels, size: tuple[int, int], mirrored: bool = False) -> Pixels:
    """Pixels (H, W, C) to (h, w, C), perhaps mirrored left to right; bicubic, antialiased."""
    images = _to_batch(pixels)
    images = images if images.dtype == torch.uint8 else images.to(torch.float64)
    # F.interpolate would put the channels first, which takes longer than resizing
    small = torch.empty((1, *size, pixels.shape[2]), dtype=images.dtype).permute(0, 3, 1, 2)
    torch.ops.aten._upsample_bicubic2d_aa.out(
        images, size, False, None, None, out=small
    )  # bytes in vector instructions
    small = small.flip(-1) if mirrored else small
    small = small if small.dtype == torch.uint8 else small.round().clamp(0, np.iinfo(pixels.dtype).max)
    found: Pixels = small.permute(0, 2, 3, 1)[0].numpy().astype(pixels.dtype, copy=False)
    return found


def fit_image(image: Image.Image, channels: int | None, size: tuple[int, int] | None) -> Pixels:
    """A Pillow image of any mode as uint8 (C, H, W), of so many channels, resized to cover `size` and cropped."""
    return _cover(_convert(_to_pixels(image, channels), channels, np.uint8), size)


def count_channels(data: bytes, name: Name) -> int:
    """1 if the image file is grey, 3 if it is in colour, or how many a TIFF has; reads no more than its header."""
    with _named(data, name):
        try:
            return 1 if _open_header(data).mode in _GREY_MODES else 3
        except UnidentifiedImageError:
            return int(_read_tiff(data).shape[2])


def decode_mask(data: bytes, name: Name) -> Pixels:
    """The values (H, W) of a PNG, of its palette or as grey."""
    with _named(data, name):
        image = _open_header(data)
        if image.format != "PNG" or image.mode not in MASK_MODES:
            raise ValueError(f"a mask is a grey PNG or one with a palette, not {image.format} {image.mode}")
        return np.asarray(image)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width of an opened file, upright."""
    turned = _orientation(image) >= 5  # these swap height and width
    return (image.width, image.height) if turned else (image.height, image.width)


def _decode(
    data: bytes, channels: int | None, dtype: Any, least: Least, fast: bool = False
) -> tuple[Pixels, tuple[int, int]]:
    """Pixels (H, W, C), upright, perhaps of a lower resolution that is still enough; and the whole height and width."""
    found = _decode_jpeg(data, channels, least, fast)
    if found is None:
        try:
            image = _open_header(data)
        except UnidentifiedImageError:
            pixels = _read_tiff(data)
        else:
            image.load()
            pixels = _upright(_to_pixels(image, channels), _orientation(image))
        found = pixels, (pixels.shape[0], pixels.shape[1])
    return _convert(found[0], channels, dtype), found[1]


def _decode_jpeg(data: bytes, channels: int | None, least: Least, fast: bool) -> tuple[Pixels, tuple[int, int]] | None:
    """The same of a usual JPEG; None for all that Pillow should look at. `fast` rounds a little more."""
    if not data.startswith(_JPEG):
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        _check_pixels(height, width)
        if space not in ("Gray", "YCbCr"):
            return None
        orientation = 1
        if _has_exif(data):
            orientation = _orientation(Image.open(io.BytesIO(data), formats=("JPEG",)))
        turned = orientation >= 5  # these swap height and width
        whole = (width, height) if turned else (height, width)
        enough = least(*whole)[::-1] if turned else least(*whole)
        # The luma channel of a JPEG is the grey image in ITU-R 601 weights.
        color = "GRAY" if space == "Gray" or channels == 1 else "RGB"
        pixels = simplejpeg.decode_jpeg(data, color, fast, fast, min_height=enough[0], min_width=enough[1])
    except ValueError as error:
        if "premature" in str(error).lower():  # Pillow lets some of these pass, their lower part grey
            raise
        return None
    return _upright(pixels, orientation), whole


def _has_exif(data: bytes) -> bool:
    """Whether a JPEG has EXIF among the parts before its pixels."""
    place = 2
    while place + 10 < len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:  # where the pixels begin
        if data[place + 1] == 0xFF:  # a byte that fills
            place += 1
        elif data[place + 4 : place + 10] == b"Exif\0\0":
            return True
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return False


def _open_header(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    _check_pixels(image.height, image.width)
    return image


def _read_tiff(data: bytes) -> Pixels:
    """A TIFF of any number of channels, (H, W, C), which Pillow does not know."""
    if not data.startswith(_TIFF):
        raise UnidentifiedImageError
    try:
        import tifffile
    except ImportError:
        raise ValueError("a TIFF of many channels needs tifffile: pip install 'clustermim[tiff]'") from None
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.series[0]
        if math.prod(page.shape) > 4 * MAX_PIXELS:
            raise Image.DecompressionBombError
        pixels: Pixels = page.asarray()
        if len(page.shape) == 3 and page.axes[-1] == "X":  # one plane a channel
            pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim not in (2, 3) or pixels.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"pixels of {pixels.dtype} {page.shape} are not 8 or 16 bit of rows, columns and channels")
    return pixels.reshape(*pixels.shape[:2], -1)


def _check_pixels(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise Image.DecompressionBombError


def _orientation(image: Image.Image) -> int:
    """How the image is stored, 1 to 8 as in EXIF; 1 is upright."""
    with contextlib.suppress(Exception):  # damaged notes of the camera spoil no pixels
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
        return value if value in _TURNS else 1
    return 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    return _TURNS[orientation](pixels) if orientation in _TURNS else pixels


def _to_pixels(image: Image.Image, channels: int | None) -> Pixels:
    """A Pillow image of any mode as (H, W, C) of 1 or 3 channels, uint8 or uint16; transparent pixels on white."""
    grey = image.mode in _GREY_MODES
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return np.asarray(image).astype(np.uint16)[..., None]
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no fixed range; convert the file to 8 or 16 bit")
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert("L" if grey else "RGB")
    return np.atleast_3d(np.asarray(image.convert("L") if channels == 1 else image))


def _convert(pixels: Pixels, channels: int | None, dtype: Any) -> Pixels:
    """Pixels (H, W, C) of as many channels and of the type that are wanted; None for as they are."""
    if channels == 3 and pixels.shape[2] == 1:
        pixels = pixels.repeat(3, axis=2)
    if channels is not None and pixels.shape[2] != channels:
        raise ValueError(f"{pixels.shape[2]} channels cannot be made {channels}")
    if dtype is None or pixels.dtype == dtype:
        return pixels
    wide = pixels.astype(np.uint32)
    return (wide * 257).astype(np.uint16) if dtype == np.uint16 else ((wide + 128) // 257).astype(np.uint8)


def _cover(pixels: Pixels, size: tuple[int, int] | None) -> Pixels:
    """Pixels (H, W, C) to (C, h, w): resized to cover a size, and the centre of it."""
    height, width, channels = pixels.shape
    if size is None or (height, width) == size:
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if pixels.dtype != np.uint8 or channels not in (1, 3):
        return resize_center_crop(_to_batch(pixels), size)[0].numpy()
    top, left, tall, wide = cover_box(height, width, size)
    box = (left, top, min(left + wide, width), min(top + tall, height))
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))
    small = np.atleast_3d(np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=box)))
    return np.ascontiguousarray(small.transpose(2, 0, 1))


def _to_batch(pixels: Pixels) -> Tensor:
    """Pixels (H, W, C) as a batch (1, C, H, W), of which torch sees that the channels are last."""
    usable = pixels.flags.writeable and min(pixels.strides) > 0  # torch takes no others
    return torch.from_numpy(pixels if usable else pixels.copy()).permute(2, 0, 1)[None]


@contextlib.contextmanager
def _named(data: bytes, name: Name) -> Iterator[None]:
    """Say in one line why a file could not be decoded, with its name."""
    try:
        yield
    except Exception as error:  # decoders raise nearly every kind of exception on damaged files
        reason = f"damaged or of an unknown kind ({' '.join(str(error).split()) or type(error).__name__})"
        if not data:
            reason = "the file is empty"
        elif isinstance(error, Image.DecompressionBombError):
            reason = f"more than {MAX_PIXELS:,} pixels, refused unread; make it smaller first"
        elif isinstance(error, UnidentifiedImageError):
            reason = "not a JPEG, PNG, WebP, BMP or TIFF image, or damaged at its beginning"
        raise DataError(f"{name if isinstance(name, str) else name()}: {reason}") from error
