"""Pictures of runs: small, and in layers where photographs are framed."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from toy_runs import TEXTURES, pretrained

from clustermim.data import open_source
from clustermim.drawing.page import FRAME, PICTURE, Page, to_png
from clustermim.reports.collect import collect
from clustermim.reports.pictures import Layers, framed, reconstructions
from clustermim.reports.records import make_records


def layers(folder: Path) -> Layers:
    (found,) = reconstructions(make_records(collect([str(folder)])[0]).pretrained)
    return found


def opened(text: str) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
        return np.asarray(picture.convert("RGBA"))


def test_a_picture_without_frames_is_one_layer_and_made_small(tmp_path: Path) -> None:
    Image.new("RGBA", (2000, 500), "blue").save(pretrained(tmp_path / "run") / PICTURE)
    found = layers(tmp_path)
    assert (found.title, found.ink, found.width, found.height) == ("run", None, 1000, 250)
    assert len(found.photographs) < 80_000


def test_what_the_drawing_frames_is_found_again(tmp_path: Path) -> None:
    source = open_source(TEXTURES)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 24, 3), dtype=np.uint8)
    images[1] = FRAME[0]  # the very grey of the frames
    page = Page(source, 3, "a title", "   some words").images({"image": images, "again": images[::-1]})
    (pretrained(tmp_path / "run") / PICTURE).write_bytes(to_png(page.finish(["a note"])))
    with Image.open(tmp_path / "run" / PICTURE) as drawn:
        pixels = np.asarray(drawn.convert("RGB"))
    inside = framed(pixels)
    height, width = page.size
    assert inside.sum() == 6 * (height + 2) * (width + 2)
    colored = (pixels.max(-1).astype(int) - pixels.min(-1)) > 8  # text and paper are grey
    assert not (colored & ~inside).any()
    found = layers(tmp_path)
    assert found.ink is not None
    photographs, ink = opened(found.photographs), opened(found.ink)
    assert photographs.shape == ink.shape == (found.height, found.width, 4)
    assert 0.2 < (photographs[..., 3] == 255).mean() < 0.9
    assert (photographs[:40, :, 3] == 0).all()  # the title is ink
    assert (ink[:60, :, 3] > 128).any()
    assert not ((photographs[..., 3] == 255) & (ink[..., 3] > 0)).any()


def test_lines_that_are_no_frames() -> None:
    pixels = np.full((40, 60, 3), 255, dtype=np.uint8)
    pixels[5, 5:30] = pixels[20, 5:30] = FRAME  # without sides
    assert not framed(pixels).any()
    pixels[5:21, 5] = pixels[5:21, 29] = FRAME
    expected = np.zeros((40, 60), dtype=bool)
    expected[5:21, 5:30] = True
    assert (framed(pixels) == expected).all()
