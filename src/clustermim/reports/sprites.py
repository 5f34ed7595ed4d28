"""Many small pictures as one: sheets of equal tiles, as text for a page, in no more bytes than they are given."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from clustermim.drawing.page import to_rgb

LOSSY = (90, 70, 45, 20, 0)  # qualities of WebP, tried in turn when the lossless file is too large
HOPELESS = 4  # no natural picture becomes so many times smaller without loss
SMALLEST = 4  # pixels; a tile is never made smaller to save bytes


def shrink(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Images (…, C, H, W) with at most so many pixels on the longer side: means over areas."""
    height, width = images.shape[-2:]
    if max(height, width) <= side:
        return images
    size = [max(1, round(length * side / max(height, width))) for length in (height, width)]
    flat = torch.from_numpy(images.reshape(-1, 1, height, width)).float()
    small = torch.nn.functional.interpolate(flat, size=size, mode="area")  # (… · C, 1, h, w)
    pixels: NDArray[np.uint8] = small.round().to(torch.uint8).numpy().reshape(*images.shape[:-2], *size)
    return pixels


def tile_side(side: int, tiles: int, budget: int) -> int:
    """The side of so many tiles that together have no more pixels than the budget; their own if that fits."""
    return min(side, max(SMALLEST, math.isqrt(budget // max(tiles, 1))))


def make_sheet(tiles: NDArray[np.uint8], limit: int) -> dict[str, Any]:
    """Tiles (n, C, h, w) row by row on a nearly square sheet: its text, columns, rows, and the size of a tile."""
    count, _, height, width = tiles.shape
    columns = max(1, math.ceil(math.sqrt(count * height / width)))
    rows = max(1, math.ceil(count / columns))
    sheet = np.zeros((rows * columns, height, width, 3), dtype=np.uint8)
    sheet[:count] = to_rgb(tiles)
    pixels = sheet.reshape(rows, columns, height, width, 3).swapaxes(1, 2)  # (rows, h, columns, w, 3)
    text = encode(Image.fromarray(pixels.reshape(rows * height, columns * width, 3)), limit)
    return {"sheet": text, "columns": columns, "rows": rows, "width": width, "height": height}


def encode(picture: Image.Image, limit: int) -> str:
    """A picture as base64 of WebP: lossless within `limit` bytes, or else as good as keeps to it."""
    content = b""
    if 3 * picture.width * picture.height <= HOPELESS * limit:
        content = _webp(picture, lossless=True, quality=50)
    for quality in LOSSY:
        if content and len(content) <= limit:
            break
        content = _webp(picture, quality=quality)
    if len(content) > limit and min(picture.size) > 1:
        return encode(picture.reduce(2), limit)
    return base64.b64encode(content).decode()


def encode_file(path: Path, width: int, limit: int) -> tuple[str, tuple[int, int]]:
    """A picture file at most so wide, as base64 of WebP, and its size."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    if picture.width > width:
        picture = picture.resize((width, max(1, round(picture.height * width / picture.width))), Image.Resampling.BOX)
    return encode(picture, limit), picture.size


def _webp(picture: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "WEBP", method=2, **options)
    return file.getvalue()
