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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clustermim.data import Source, open_source
from clustermim.data.spec import is_builtin
from clustermim.drawing.gallery import GalleryOptions, TokenGallery, collect_tokens
from clustermim.drawing.page import to_rgb
from clustermim.errors import ConfigError, UserError
from clustermim.factories import PREFIX
from clustermim.progress import log_info
from clustermim.reports.records import TokenizerRecord
from clustermim.tokenizers import load_tokenizer
from clustermim.tokenizers.base import check_sizes, outside_teacher

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
SMALLEST = 4  # pixels; a tile is never made smaller to save bytes


@dataclass(frozen=True)
class Explorer:
    """What the page's script reads."""

    tokenizers: list[dict[str, Any]]  # one JSON object a tokenizer
    sources: list[dict[str, Any]]  # one a source: its sample images
    left_out: list[str]  # why a tokenizer is not shown


def make_explorer(
    records: Sequence[TokenizerRecord],
    data: str | None = None,
    images: int = 512,
    seed: int = 0,
    trust_runs: bool = False,
) -> Explorer:
    """Look at each tokenizer on `data`, or on what it was fitted on; one that cannot be shown is left out."""
    check_sizes(images=(images, 1))
    opened: dict[str, Source] = {} if data is None else {data: open_source(data)}
    explorer, places, refused = Explorer([], [], []), dict[str, int](), None
    tokenizer_limit = min(TOKENIZER_BYTES, ALL_TOKENIZERS // max(len(records), 1))
    source_limit = min(SOURCE_BYTES, ALL_SOURCES // max(len({data or record.found.data for record in records}), 1))
    options = GalleryOptions(TOKENS, PATCHES, SAMPLES, images, seed)
    for record in records:
        spec = data or record.found.data
        try:
            if spec is None:
                raise ConfigError("what it was fitted on is not known; name images with --data")
            if not trust_runs:
                check_named(record, data)
            source = opened[spec] = opened.get(spec) or open_source(spec)
            log_info(f"looking at the tokens of {record.title} on {spec}")
            gallery = collect_tokens(load_tokenizer(record.found.folder), source, options)
        except UserError as error:
            refused = refused or error
            explorer.left_out.append(f"the tokens of {record.title} are not shown: {error}")
            continue
        if spec not in places:
            places[spec] = len(explorer.sources)
            chosen, sheet = gallery.samples.labels, make_sheet(gallery.samples.images, IMAGE_SIDE, source_limit)
            labels = None if chosen is None else [source.class_names[label] for label in chosen]
            explorer.sources.append({"spec": source.spec, "labels": labels, "sheet": sheet})
        explorer.tokenizers.append({**describe_tokens(gallery, record, tokenizer_limit), "source": places[spec]})
    if data is not None and refused is not None and not explorer.tokenizers:
        raise refused  # the images that were asked for fit no tokenizer
    return explorer


def check_named(record: TokenizerRecord, data: str | None) -> None:
    """Refuse images and teachers that only a run's files name: they may be any folder, or a request to the hub."""
    remedy = "add --trust-runs if these runs are your own"
    if data is None and not is_builtin(record.found.data or ""):
        named = f"its files name the images {record.found.data}, which were not opened"
        raise ConfigError(f"{named}: name images with --data, or {remedy}")
    teacher = outside_teacher(record.found.folder)
    if teacher is not None and not str(teacher).startswith(PREFIX):  # code has a rule of its own
        raise ConfigError(f"its files name the teacher {teacher}, which was not opened: {remedy}")


def describe_tokens(gallery: TokenGallery, record: TokenizerRecord, limit: int) -> dict[str, Any]:
    """The tokens of a tokenizer as JSON values; a token's tiles are its face and then its patches."""
    tokens, kept, channels, side, _ = gallery.patches.shape
    tiles = np.concatenate([gallery.faces[:, None], gallery.patches], axis=1)  # (T, 1 + n, C, p, p)
    smaller = max(SMALLEST, math.isqrt(PIXELS // max(tokens * (kept + 1), 1)))
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
        "sheet": make_sheet(tiles.reshape(-1, channels, side, side), smaller, limit),
        "colors": colors_of(gallery),
        "grid": list(gallery.samples.ids.shape[1:]),
        "ids": gallery.samples.ids.reshape(len(gallery.samples.ids), -1).tolist(),  # (M, N)
    }


def colors_of(gallery: TokenGallery) -> dict[str, str]:
    """The colours, such as 1f77b4, of the tokens that are shown, by their ids."""
    ids = np.union1d(gallery.shown, gallery.samples.ids)
    return {str(token): gallery.colors[token].tobytes().hex() for token in ids.tolist()}


def histograms(counts: NDArray[np.int64]) -> list[list[int]]:
    """Of counts (T, classes) the most frequent classes of each token: class, count, class, count, …, most first."""
    order = np.argsort(-counts, axis=1, kind="stable")[:, :CLASSES]  # (T, at most CLASSES)
    pairs = np.stack([order, np.take_along_axis(counts, order, axis=1)], axis=-1)  # (T, …, 2)
    return [[int(v) for v in row[row[:, 1] > 0].flatten()] for row in pairs]


def make_sheet(tiles: NDArray[np.uint8], side: int, limit: int) -> dict[str, Any]:
    """Tiles (n, C, h, w) row by row on a nearly square sheet: its text, columns, rows, and the size of a tile.

    A tile has no more than `side` pixels on its longer side.
    """
    count, _, *shape = tiles.shape
    height, width = (max(1, round(length * min(1, side / max(shape)))) for length in shape)
    columns = max(1, math.ceil(math.sqrt(count * height / width)))
    rows = max(1, math.ceil(count / columns))
    sheet = Image.new("RGB", (columns * width, rows * height))
    for place, tile in enumerate(to_rgb(tiles)):
        small = Image.fromarray(tile).resize((width, height), Image.Resampling.BOX)
        sheet.paste(small, (place % columns * width, place // columns * height))
    return {"sheet": encode(sheet, limit), "columns": columns, "rows": rows, "width": width, "height": height}


def encode(picture: Image.Image, limit: int) -> str:
    """A picture as base64 of WebP: lossless within `limit` bytes, or else as good as keeps to it."""
    for options in ({"lossless": True, "quality": 50}, *({"quality": quality} for quality in LOSSY)):
        file = io.BytesIO()
        picture.save(file, "WEBP", method=2, **options)
        if file.tell() <= limit:
            break
    if file.tell() > limit and min(picture.size) > 1:
        return encode(picture.reduce(2), limit)
    return base64.b64encode(file.getvalue()).decode()
