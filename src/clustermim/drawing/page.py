"""One picture laid out in pixels, y downwards: measured text and crisp pixel art; and how it becomes a file."""

from __future__ import annotations

import io
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from numpy.typing import NDArray
from PIL import Image, ImageOps

from clustermim.data import Source
from clustermim.errors import ConfigError, RunError, WriteError
from clustermim.files import write_atomic

PICTURE = "reconstructions.png"  # what an encoder or a tokenizer makes of a few images, in its run folder
DPI = 200  # pixels of the layout and of a .png, an inch
MARGIN, NARROWEST = 50, 1100  # around the page; the title needs as much
GUTTER, GAP = 160, 16  # for the names of rows; between columns; rows stand closer
SIDE, LARGEST_SIDE = 192, 340  # longer side of an image on the page: about SIDE for a small one, LARGEST_SIDE at most
COLUMNS = 8  # of images beside each other
LARGEST = 1 << 16  # pixels; more on a side cannot be drawn
INK, FAINT, FRAME = "#1a1a1a", "#6b6b6b", (190, 190, 190)

# Where matplotlib's own font lacks a character, such as in Chinese class names: the first of these that is installed
WIDE_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Droid Sans Fallback",
              "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic",
              "Arial Unicode MS")  # fmt: skip

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # height and width of an image on the page
Rows = dict[str, Pixels]  # name → pictures (M, h, w, 3), of any resolution


class Picture(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


class Page:
    """A page about images of a source that is drawn on from top to bottom: x is inside the margin, y where it is.

    It begins with a title, and a line that says where the images are from and what is shown of them. It has room for
    some columns of images, and for content of some width.
    """

    def __init__(self, source: Source, columns: int, title: str, shown: str, width: int = 0) -> None:
        self.source, self.size, self.y = source, page_size(*source.shape[1:]), MARGIN
        self.step = max(self.size[1] + 2, SIDE // 2) + GAP  # from one column of images to the next
        self.room = max(NARROWEST, width, GUTTER + min(columns, COLUMNS) * self.step - GAP)
        self.figure = Picture(dpi=DPI, facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.text(0, shorten(title, self.room, 10, "bold"), 10, color=INK, weight="bold")
        self.down(40)
        self.text(0, shorten(source.spec, self.room - text_width(shown, 8), 8) + shown, 8)
        self.down(56)

    def down(self, pixels: int) -> None:
        """Go on below; refuses what becomes too large."""
        self.y += pixels
        if max(self.room, self.y) >= LARGEST - 2 * MARGIN:
            raise ConfigError("the picture is too large to draw: ask for fewer --tokens, --patches or --images")

    def text(self, x: float, text: str, size: float = 6, below: float = 0, **style: Any) -> None:
        """Text with its top at y, drawn as it is: no `$formula$` is looked for."""
        style = {"color": FAINT, "va": "top", "family": font_families(), **style}
        self.axes.text(MARGIN + x, self.y + below, literal(text), size=size, parse_math=False, usetex=False, **style)

    def box(self, x: float, width: float, height: float, color: Any, below: float = 0) -> None:
        """A filled rectangle."""
        self.axes.add_patch(Rectangle((MARGIN + x, self.y + below), width, height, facecolor=color, linewidth=0))

    def strip(self, x: int, pictures: Pixels, size: Size, gap: int) -> None:
        """Pictures (M, h, w, 3) of some size beside each other, framed: one, as each takes matplotlib milliseconds."""
        height, step = size[0] + 2, size[1] + 2 + gap
        whole = Image.new("RGB", (len(pictures) * step - gap, height), "white")
        for column, picture in enumerate(pictures):
            drawn = Image.fromarray(picture).resize(size[::-1], Image.Resampling.BOX)  # enlarged pixels stay square
            whole.paste(ImageOps.expand(drawn, 1, FRAME), (column * step, 0))
        extent = (MARGIN + x, MARGIN + x + whole.width, self.y + height, self.y)
        self.axes.imshow(np.asarray(whole), extent=extent, interpolation="nearest", aspect="auto")

    def images(self, rows: Rows, captions: Sequence[str] | None = None) -> Page:
        """Named rows of pictures, with a column for each image, in as many bands as they need."""
        fitting = max(1, (self.room - GUTTER + GAP) // self.step)
        for start in range(0, max(map(len, rows.values())), fitting):
            band = slice(start, start + fitting)
            for column, name in enumerate(captions[band] if captions else ()):
                self.text(GUTTER + column * self.step, shorten(name, self.step - GAP))
            self.down(26 if captions else 0)
            for name, pictures in rows.items():
                self.text(0, shorten(name, GUTTER - GAP), below=4)
                self.strip(GUTTER, pictures[band], self.size, self.step - self.size[1] - 2)
                self.down(max(self.size[0], 24) + GAP // 2)
            self.down(GAP)
        return self

    def finish(self, notes: Iterable[str] = ()) -> Figure:
        """The figure, with notes, and cut below them."""
        channels = self.source.shape[0]
        way = "the first three are drawn as red, green and blue" if channels > 3 else "their mean is drawn as grey"
        said = [] if channels in (1, 3) else [f"The images have {channels} channels: {way}."]
        for line in (*notes, *said):
            self.text(0, line)
            self.down(24)
        width, height = self.room + 2 * MARGIN, self.y + MARGIN // 2
        self.figure.set_size_inches(width / DPI, height / DPI)
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        return self.figure


def page_size(height: int, width: int) -> Size:
    """Height and width of an image on the page: a whole multiple or a whole part, to keep patches even."""
    longer = max(height, width)
    larger, smaller = max(1, round(SIDE / longer)), -(-longer // LARGEST_SIDE)
    return max(1, height * larger // smaller), max(1, width * larger // smaller)


def literal(text: str) -> str:
    """Text on one line: what cannot be printed, such as a line feed in a file name, is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@cache
def font_families() -> list[str]:
    """The font of all text, and those that stand in for it."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]


def text_width(text: str, size: float = 6, weight: str = "normal") -> int:
    """Pixels that a text takes."""
    font = FontProperties(family=font_families(), size=size, weight=weight)
    points: float = text_to_path.get_text_width_height_descent(literal(text), font, ismath=False)[0]
    return math.ceil(points * DPI / 72)


def shorten(text: str, width: int, size: float = 6, weight: str = "normal") -> str:
    """The text, or as much of its beginning and end as fits into some pixels."""
    text = literal(text)
    if text_width(text, size, weight) <= width:
        return text

    def cut(kept: int) -> str:
        return text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]

    too_long = bisect_left(range(len(text)), True, key=lambda kept: text_width(cut(kept), size, weight) > width)
    return cut(max(too_long - 1, 0))


def to_rgb(images: Pixels) -> Pixels:
    """Images (…, C, H, W) to (…, H, W, 3): grey, colours, the first three of more channels, the mean of two."""
    last = np.moveaxis(images, -3, -1)
    if last.shape[-1] >= 3:
        return last[..., :3]
    return np.repeat(last.mean(-1, keepdims=True).round().astype(np.uint8), 3, axis=-1)


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
    except WriteError as error:
        raise WriteError(path, error.reason, advice) from error
