from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from clustermim.data.encoded import evenly_spaced
from clustermim.data.images import MAX_PIXELS, count_channels, decode_image
from clustermim.errors import DataError


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})])
def test_lossless_colour(encode: Any, noise: Any, kind: str, options: dict[str, Any]) -> None:
    pixels = noise(5, 7, 3)
    data = encode(pixels, kind, **options)
    assert np.array_equal(decode_image(data, "a"), pixels.transpose(2, 0, 1))
    assert count_channels(data, "a") == 3


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_grey(encode: Any, noise: Any, kind: str) -> None:
    pixels = noise(5, 7)
    data = encode(pixels, kind)
    assert np.array_equal(decode_image(data, "a"), pixels[None])
    assert np.array_equal(decode_image(data, "a", channels=3), np.stack([pixels] * 3))
    assert count_channels(data, "a") == 1


def test_colour_to_grey_uses_itu_601_weights(encode: Any) -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    assert decode_image(encode(pixels), "a", channels=1).tolist() == [[[76, 150, 29, 255]]]


def test_jpeg_fast_path_agrees_with_pillow(encode: Any) -> None:
    ramp = np.stack(np.broadcast_arrays(*np.ogrid[0:250:40j, 0:250:50j], 90), -1).astype(np.uint8)
    data = encode(ramp, "JPEG", quality=95)
    picture = Image.open(io.BytesIO(data))
    difference = np.abs(decode_image(data, "a").astype(int) - np.asarray(picture).transpose(2, 0, 1))
    assert difference.max() <= 2
    grey = np.abs(decode_image(data, "a", channels=1)[0].astype(int) - np.asarray(picture.convert("L")))
    assert grey.max() <= 2
    assert decode_image(encode(ramp[..., 0], "JPEG"), "a").shape == (1, 40, 50)
    assert count_channels(encode(ramp[..., 0], "JPEG"), "a") == 1
    assert count_channels(data, "a") == 3


def test_scaled_decoding_stays_close_to_full_decoding(encode: Any) -> None:
    y, x = np.mgrid[0:400, 0:300] / 100
    smooth = np.stack([np.sin(3 * x) + np.cos(2 * y), np.sin(x * y), np.cos(4 * x)], -1)
    pixels = np.uint8(127 + 60 * smooth)
    small = decode_image(encode(pixels, "JPEG", quality=95), "a", size=(60, 60))
    exact = decode_image(encode(pixels), "a", size=(60, 60))
    assert small.shape == (3, 60, 60)
    assert np.abs(small.astype(int) - exact).mean() < 1.5


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(8, 8), (8, 20), (30, 9), (90, 70)])
def test_size_covers_and_crops_the_centre(encode: Any, kind: str, size: tuple[int, int]) -> None:
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 40:] = 255  # the border of the halves stays in the middle
    image = decode_image(encode(pixels, kind), "a", size=size)
    assert image.shape == (3, *size)
    line = image[0].mean(axis=0)
    assert np.allclose(line + line[::-1], 255, atol=4)
    assert line[0] < 5


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(encode: Any, kind: str, orientation: int) -> None:
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = (250, 0, 0)  # a red corner, top left
    upright[8:, :16] = (0, 0, 250)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(np.ascontiguousarray(stored), kind, exif=exif)
    image = decode_image(data, "a")
    assert image.shape == (3, 16, 32)
    assert np.abs(image.astype(int) - upright.transpose(2, 0, 1))[:, 3::9, 6::20].max() < 20
    small = decode_image(data, "a", size=(4, 8))
    assert small[0, 1, 1] > 180
    assert small[2, 2, 1] > 180


@pytest.mark.parametrize("before", [b"", b"\xff\xe2\xff\xff" + bytes(65533), b"\xff" * 9])
def test_exif_is_found_wherever_it_is(encode: Any, noise: Any, before: bytes) -> None:
    """Behind a long profile of colours, or behind bytes that fill."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(noise(16, 32, 3), "JPEG", exif=exif)
    assert decode_image(data[:2] + before + data[2:], "a").shape == (3, 32, 16)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_senseless_exif_is_ignored(encode: Any, noise: Any, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 77
    for senseless in (exif, b"Exif\0\0 no such thing", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"):
        assert decode_image(encode(noise(8, 16, 3), kind, exif=senseless), "a").shape == (3, 8, 16)


def test_transparent_pixels_lie_on_white(encode: Any) -> None:
    colour = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 128]]], np.uint8)
    assert decode_image(encode(colour), "a")[:, 0].T.tolist() == [[10, 20, 30], [255, 255, 255], [127] * 3]
    grey = Image.fromarray(np.array([[[10, 255], [10, 0]]], np.uint8), "LA")
    assert decode_image(encode(grey), "a").tolist() == [[[10, 255]]]


def test_palettes(encode: Any) -> None:
    palette = Image.new("P", (3, 1))
    palette.putpalette([200, 0, 0, 0, 100, 0, 5, 6, 7])
    palette.putdata([0, 1, 2])
    data = encode(palette)
    assert decode_image(data, "a")[:, 0].T.tolist() == [[200, 0, 0], [0, 100, 0], [5, 6, 7]]
    data = encode(palette, transparency=1)
    assert decode_image(data, "a")[:, 0].T.tolist() == [[200, 0, 0], [255, 255, 255], [5, 6, 7]]


def test_black_and_white(encode: Any) -> None:
    data = encode(Image.fromarray(np.array([[0, 255, 255]], np.uint8)).convert("1"))
    assert decode_image(data, "a").tolist() == [[[0, 255, 255]]]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk(encode: Any, kind: str) -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    image = decode_image(encode(red, kind), "a")
    assert image.shape == (3, 16, 16)
    assert image[0].min() > 240
    assert image[1:].max() < 15


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_stay_or_are_scaled(encode: Any, kind: str) -> None:
    deep = np.array([[0, 257, 257 * 128, 65535, 128, 129]], np.uint16)
    data = encode(deep, kind)
    assert decode_image(data, "a").tolist() == [deep.tolist()]
    assert decode_image(data, "a", dtype=np.uint8).tolist() == [[[0, 1, 128, 255, 0, 1]]]
    assert decode_image(encode(np.array([[0, 255]], np.uint8)), "a", dtype=np.uint16).tolist() == [[[0, 65535]]]
    assert count_channels(data, "a") == 1


@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_tiff_of_many_channels(noise: Any, planes: str, dtype: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (20, 30, 13), dtype=dtype)
    file = io.BytesIO()
    stored = pixels if planes == "contig" else pixels.transpose(2, 0, 1)
    tifffile.imwrite(file, stored, planarconfig=planes, photometric="minisblack")
    data = file.getvalue()
    assert np.array_equal(decode_image(data, "a"), pixels.transpose(2, 0, 1))
    assert count_channels(data, "a") == 13
    small = decode_image(data, "a", size=(10, 10))
    assert small.shape == (13, 10, 10)
    assert small.dtype == dtype
    with pytest.raises(DataError, match="13 channels cannot be made 3"):
        decode_image(data, "a", channels=3)


def test_floating_point_pixels_are_refused(encode: Any) -> None:
    with pytest.raises(DataError, match=r"a\.tif: .*convert the file to 8 or 16 bit"):
        decode_image(encode(np.zeros((3, 3), np.float32), "TIFF"), "a.tif")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("size", [None, (8, 8)])
def test_truncated_files(encode: Any, noise: Any, kind: str, size: tuple[int, int] | None) -> None:
    data = encode(noise(40, 60, 3), kind)
    for end in (len(data) * 2 // 3, 60, 10):
        with pytest.raises(DataError, match="photo: ") as caught:
            decode_image(data[:end], "photo", size=size)
        assert "\n" not in str(caught.value)


def test_truncated_jpeg_with_an_end_marker(encode: Any, noise: Any) -> None:
    data = encode(noise(40, 60, 3), "JPEG")
    with pytest.raises(DataError, match=r"(?i)premature end"):
        decode_image(data[: len(data) // 2] + b"\xff\xd9", "a")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello, this is text", "not a JPEG, PNG, WebP, BMP or TIFF image"),
        (b"GIF89a" + bytes(50), "not a JPEG"),
        (b"\xff\xd8\xff" + bytes(50), "a: "),
    ],
)
def test_no_image_at_all(data: bytes, reason: str) -> None:
    for read in (decode_image, count_channels):
        with pytest.raises(DataError, match=reason):
            read(data, "a")


def png_header(height: int, width: int) -> bytes:
    """A PNG that promises a size and holds nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + end


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs_are_refused_unread(encode: Any, noise: Any) -> None:
    jpeg = bytearray(encode(noise(8, 8, 3), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 60000, 60000)
    side = int(MAX_PIXELS**0.5) + 1
    for data in (png_header(side, side), png_header(100_000, 100_000), bytes(jpeg)):
        for size in (None, (8, 8)):
            with pytest.raises(DataError, match=r"bomb\.png: more than 100,000,000 pixels"):
                decode_image(data, "bomb.png", size=size)


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 10_000])
def test_spread(count: int) -> None:
    positions = evenly_spaced(count)
    assert len(positions) == len(set(positions)) == min(count, 256)
    if count:
        assert (positions[0], positions[-1]) == (0, count - 1)
        gaps = np.diff(positions)
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
