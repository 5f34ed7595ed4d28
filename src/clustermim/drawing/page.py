"""One picture laid out in pixels, y downwards: measured text and crisp pixel art; and how it becomes a file."""

from __future__ import annotations

import io
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic

PICTURE = "reconstructions.png"  # what an encoder or a tokenizer makes of a few images, in its run folder
DPI = 200  # pixels of the layout and of a .png, an inch
MARGIN, NARROWEST = 50, 1100  # around the page; the title needs as much
LARGEST = 1 << 16  # pixels; more on a side cannot be drawn
INK, FAINT, FRAME = "#1a1a1a", "#6b6b6b", 190


class Picture(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


class Page:
    """A page for content of some width, and at least some height, that is drawn on from top to bottom.

    It begins with a title, and a line that says where the images are from and what is shown of them.
    """

    def __init__(self, width: int, height: int, title: str, spec: str, shown: str) -> None:
        self.room = max(NARROWEST, width)  # for the content
        self.width = self.room + 2 * MARGIN
        self._check(height)  # before the work
        self.figure = Picture(dpi=DPI, facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.text(MARGIN, MARGIN, shorten(title, self.room, 10, "bold"), 10, weight="bold")
        origin = shorten(spec, self.room - text_width(shown, 8), 8)
        self.text(MARGIN, MARGIN + 40, origin + shown, 8, color=FAINT)
        self.top = MARGIN + 96  # where the content begins

    def text(self, x: float, y: float, text: str, size: float = 7, **style: Any) -> None:
        """Text with its top at y, drawn as it is: no `$formula$` is looked for."""
        style = {"color": INK, "va": "top", **style}
        self.axes.text(x, y, literal(text), size=size, parse_math=False, usetex=False, **style)

    def picture(self, x: int, y: int, pixels: NDArray[np.uint8]) -> None:
        """Pixels (h, w, 3), one for one."""
        height, width = pixels.shape[:2]
        extent = (x, x + width, y + height, y)
        self.axes.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto")

    def box(self, x: float, y: float, width: float, height: float, color: Any) -> None:
        """A filled rectangle."""
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=color, linewidth=0))

    def finish(self, y: int, notes: Iterable[str | None]) -> Figure:
        """The figure, with notes from y on and cut below them."""
        lines = [note for note in notes if note]
        for place, line in enumerate(lines):
            self.text(MARGIN, y + 24 * place, line, 6, color=FAINT)
        height = y + 24 * len(lines) + MARGIN // 2
        self._check(height)
        self.figure.set_size_inches(self.width / DPI, height / DPI)
        self.axes.set(xlim=(0, self.width), ylim=(height, 0))
        return self.figure

    def _check(self, height: int) -> None:
        if max(self.width, height) >= LARGEST:
            raise ConfigError(
                f"the picture would have {self.width}×{height} pixels, too many to draw: "
                "ask for fewer --tokens, --patches or --images"
            )


def literal(text: str) -> str:
    """Text on one line: what cannot be printed, such as a line feed in a file name, is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def text_width(text: str, size: float = 7, weight: str = "normal") -> int:
    """Pixels that a text takes."""
    font = FontProperties(size=size, weight=weight)
    renderer: Any = _renderer()
    width: float = renderer.get_text_width_height_descent(literal(text), font, ismath=False)[0]
    return math.ceil(width)


def shorten(text: str, width: int, size: float = 7, weight: str = "normal") -> str:
    """The text, or as much of its beginning and end as fits into some pixels."""
    text = literal(text)
    if text_width(text, size, weight) <= width:
        return text

    def cut(kept: int) -> str:
        return text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]

    too_long = bisect_left(range(len(text)), True, key=lambda kept: text_width(cut(kept), size, weight) > width)
    return cut(max(too_long - 1, 0))


def to_rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (…, C, H, W) to (…, H, W, 3): grey, colours, the first three of more channels, the mean of two."""
    last = np.moveaxis(images, -3, -1)
    if last.shape[-1] >= 3:
        return last[..., :3]
    return np.repeat(last.mean(-1, keepdims=True).round().astype(np.uint8), 3, axis=-1)


def channel_note(channels: int) -> str | None:
    """What `to_rgb` does with images that are neither grey nor in colour."""
    if channels in (1, 3):
        return None
    way = "the first three are drawn as red, green and blue" if channels > 3 else "their mean is drawn as grey"
    return f"The images have {channels} channels: {way}."


def to_png(figure: Figure) -> bytes:
    """The bytes of a picture; the same for the same picture."""
    file = io.BytesIO()
    save_figure(figure, file, "png", pil_kwargs={"compress_level": 3})  # twice as fast as 6, as small
    return file.getvalue()


def save_figure(figure: Figure, file: BinaryIO, kind: str, **options: Any) -> None:
    """Write a figure without a date; the user's own settings must not crop it, and the salt names parts of an .svg."""
    undated: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with rc_context({"savefig.bbox": "standard", "svg.hashsalt": "clustermim"}):
        figure.savefig(file, format=kind, dpi=DPI, metadata=undated.get(kind, {}), **options)


def draw_size(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Pixels (h, w, 3) at another size, in a thin frame.

    They stay squares where they come out equal, or large enough for a difference of one not to show.
    """
    height, width = pixels.shape[:2]
    even = size[0] % height == 0 and size[1] % width == 0
    if even or min(size[0] / height, size[1] / width) >= 4:
        pixels = pixels[np.arange(size[0]) * height // size[0]][:, np.arange(size[1]) * width // size[1]]
    else:
        pixels = np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.LANCZOS))
    return np.pad(pixels, ((1, 1), (1, 1), (0, 0)), constant_values=FRAME)


@cache
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]


def check_out(path: Path, suffixes: Iterable[str], overwrite: bool) -> None:
    """Refuse a destination before the work begins."""
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"--out {path} must end in {', '.join(suffixes)}")
    if os.path.isdir(path):  # and not path.is_dir(), which may raise: an impossible name is refused when written
        raise RunError(f"{path} is a folder; choose another --out")
    if os.path.exists(path) and not overwrite:
        raise RunError(f"{path} exists; choose another --out, or replace it with --overwrite")


def write_out(path: Path, content: bytes | Callable[[BinaryIO], None], advice: str = "choose another --out") -> None:
    """Write a file, as `write_atomic` does."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; {advice}") from error
