"""The pictures that runs left of what they predict, small, and in two layers: a page of either theme shows through."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clustermim.drawing.page import FRAME, PICTURE
from clustermim.reports.explorer import encode
from clustermim.reports.records import PretrainRecord, unique

WIDTH, PICTURES = 1000, 20  # pixels of each, and how many
PHOTOGRAPH_BYTES, INK_BYTES = 45_000, 30_000
LARGEST = 20_000_000  # pixels of one whose photographs are looked for
SHORTEST = 8  # pixels of the side of a frame


@dataclass(frozen=True)
class Layers:
    """A picture of a run: its photographs, and text around them; each as base64 of a WebP."""

    title: str
    photographs: str
    ink: str | None  # black on nothing; None where no photographs were found, and the first layer is all of it
    width: int
    height: int


def reconstructions(records: Sequence[PretrainRecord]) -> list[Layers]:
    """The pictures of runs that can be read."""
    found: list[Layers] = []
    for record in unique(records)[: 4 * PICTURES]:
        with suppress(OSError, ValueError, Image.DecompressionBombError):
            with Image.open(record.found.folder / PICTURE) as opened:
                picture = opened.convert("RGB")
            found.append(_layers(record.title, picture))
    return found[:PICTURES]


def _layers(title: str, picture: Image.Image) -> Layers:
    inside = framed(np.asarray(picture)) if picture.width * picture.height <= LARGEST else np.zeros(1, dtype=np.bool_)
    if not inside.any():
        small = _small(picture)
        return Layers(title, encode(small, PHOTOGRAPH_BYTES), None, *small.size)
    photographs, ink = picture.convert("RGBA"), Image.new("RGBA", picture.size)
    photographs.putalpha(Image.fromarray(np.where(inside, np.uint8(255), np.uint8(0))))
    dark = 255 - np.asarray(picture.convert("L"))
    ink.putalpha(Image.fromarray(np.where(inside, np.uint8(0), dark)))
    small = _small(photographs)
    return Layers(title, encode(small, PHOTOGRAPH_BYTES), encode(_small(ink), INK_BYTES), *small.size)


def _small(picture: Image.Image) -> Image.Image:
    picture.thumbnail((WIDTH, picture.height), Image.Resampling.BOX)
    return picture


def framed(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where (H, W) of a picture (H, W, 3) are photographs: inside the frames that the drawing puts around each."""
    line = (pixels == np.array(FRAME, dtype=np.uint8)).all(-1)  # (H, W)
    inside: NDArray[np.bool_] = np.zeros(line.shape, dtype=np.bool_)
    tops: dict[tuple[int, int], int] = {}  # the last row that a frame of these columns may begin with
    for row in np.flatnonzero(line.sum(1) >= SHORTEST).tolist():
        ends = np.flatnonzero(np.diff(line[row].astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
        for left, right in ends[ends[:, 1] - ends[:, 0] >= SHORTEST].tolist():
            top = tops.get((left, right), row)
            if top < row and line[top : row + 1, left].all() and line[top : row + 1, right - 1].all():
                inside[top : row + 1, left:right] = True
            tops[left, right] = row
    return inside
