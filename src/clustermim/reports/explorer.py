"""What the token explorer of a report shows: the tokens of each tokenizer, their patches, classes and places.

Everything is bounded: so many images are looked at, so many tokens and patches kept, and pictures are encoded into so
many bytes, whatever the size of a codebook or an image.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from clustermim.data import Source, open_source
from clustermim.drawing.gallery import TokenGallery, collect_tokens
from clustermim.drawing.page import to_rgb
from clustermim.errors import ConfigError, UserError
from clustermim.progress import log_info
from clustermim.reports.records import TokenizerRecord
from clustermim.tokenizers import load_tokenizer
from clustermim.tokenizers.base import check_sizes

TOKENS = 1000  # at most, the most used ones
PATCHES = 8  # of each token
SAMPLES = 24  # images shown with their tokens
IMAGE_SIDE = 96  # pixels, at most, of a sample
CLASSES = 12  # of a histogram
PIXELS = 450_000  # of all patches of a tokenizer
# Of the patches of a tokenizer and of the samples of a source, each and all: 20 tokenizers on 20 sources fit on a page.
TOKENIZER_BYTES, ALL_TOKENIZERS = 150_000, 3_000_000
SOURCE_BYTES, ALL_SOURCES = 250_000, 1_200_000
LOSSY = (90, 70, 45, 20, 0)  # qualities of WebP, tried in turn when the lossless file is too large
HOPELESS = 4  # no natural picture becomes so many times smaller without loss
SMALLEST = 4  # pixels; a tile is never made smaller to save bytes


@dataclass(frozen=True)
class Explorer:
    """What the page's script reads, and the counts that the page draws itself."""

    tokenizers: list[dict[str, Any]]  # one JSON object a tokenizer
    sources: list[dict[str, Any]]  # one a source: its sample images
    counts: dict[str, NDArray[np.int64]]  # (K,) patches of each token, by the title of the tokenizer
    left_out: list[str]  # why a tokenizer is not shown


def make_explorer(
    records: Sequence[TokenizerRecord], data: str | None = None, images: int = 512, seed: int = 0
) -> Explorer:
    """Look at each tokenizer on `data`, or on what it was fitted on; one that cannot be shown is left out."""
    check_sizes(images=(images, 1))
    opened: dict[str, Source] = {} if data is None else {data: open_source(data)}
    explorer, places, refused = Explorer([], [], {}, []), dict[str, int](), None
    tokenizer_limit = min(TOKENIZER_BYTES, ALL_TOKENIZERS // max(len(records), 1))
    source_limit = min(SOURCE_BYTES, ALL_SOURCES // max(len({data or record.found.data for record in records}), 1))
    sizes = {"tokens": TOKENS, "patches": PATCHES, "images": SAMPLES, "max_images": images}
    for record in records:
        spec = data or record.found.data
        try:
            if spec is None:
                raise ConfigError("what it was fitted on is not known; name images with --data")
            source = opened[spec] = opened.get(spec) or open_source(spec)
            log_info(f"looking at the tokens of {record.title} on {spec}")
            gallery = collect_tokens(load_tokenizer(record.found.folder), source, **sizes, seed=seed)
        except UserError as error:
            refused = refused or error
            explorer.left_out.append(f"the tokens of {record.title} are not shown: {error}")
            continue
        if spec not in places:
            places[spec] = len(explorer.sources)
            explorer.sources.append(describe_samples(gallery, source, source_limit))
        explorer.counts[record.title] = gallery.counts
        explorer.tokenizers.append({**describe_tokens(gallery, record, tokenizer_limit), "source": places[spec]})
    if data is not None and refused is not None and not explorer.tokenizers:
        raise refused  # the images that were asked for fit no tokenizer
    return explorer


def describe_tokens(gallery: TokenGallery, record: TokenizerRecord, limit: int) -> dict[str, Any]:
    """The tokens of a tokenizer as JSON values; a token's tiles are its face and then its patches."""
    tokens, kept, channels, side, _ = gallery.patches.shape
    tiles = np.concatenate([gallery.faces[:, None], gallery.patches], axis=1)  # (T, 1 + n, C, p, p)
    tiles = shrink(tiles.reshape(-1, channels, side, side), tile_side(side, tokens * (kept + 1), PIXELS))
    return {
        "title": record.title,
        "vocab": len(gallery.counts),
        "used": gallery.used,
        "images": gallery.images,
        "patches": int(gallery.counts.sum()),
        "centers": gallery.has_centers,
        "nearest": gallery.nearest,
        "means": gallery.shows_means,
        "classes": list(gallery.class_names),
        "tokens": gallery.shown.tolist(),
        "counts": gallery.counts[gallery.shown].tolist(),
        "filled": gallery.filled.tolist(),
        "histograms": None if gallery.class_counts is None else histograms(gallery.class_counts[gallery.shown]),
        "perToken": kept + 1,
        "sheet": make_sheet(tiles, limit),
        "grid": list(gallery.samples.ids.shape[1:]),
        "ids": gallery.samples.ids.reshape(len(gallery.samples.ids), -1).tolist(),  # (M, N)
    }


def describe_samples(gallery: TokenGallery, source: Source, limit: int) -> dict[str, Any]:
    """The sample images of a source as JSON values."""
    samples = gallery.samples
    labels = None if samples.labels is None else [gallery.class_names[label] for label in samples.labels]
    return {"spec": source.spec, "labels": labels, "sheet": make_sheet(shrink(samples.images, IMAGE_SIDE), limit)}


def histograms(counts: NDArray[np.int64]) -> list[list[int]]:
    """Of counts (T, classes) the most frequent classes of each token: class, count, class, count, …, most first."""
    order = np.argsort(-counts, axis=1, kind="stable")[:, :CLASSES]  # (T, at most CLASSES)
    pairs = np.stack([order, np.take_along_axis(counts, order, axis=1)], axis=-1)  # (T, …, 2)
    return [[int(v) for v in row[row[:, 1] > 0].flatten()] for row in pairs]


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
