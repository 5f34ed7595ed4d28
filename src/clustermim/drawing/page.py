"""One picture laid out in pixels, y downwards: text that is measured before it is placed, and crisp pixel art."""

from __future__ import annotations

import io
import math
from bisect import bisect_left
from functools import cache
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from clustermim.errors import ConfigError

DPI = 200  # pixels of the layout and of a .png, an inch
LARGEST = 1 << 16  # pixels; more on a side cannot be drawn
INK, FAINT, FRAME = "#1a1a1a", "#6b6b6b", 190

Align = Literal["left", "center", "right"]


class Page:
    """A figure of some width, and at least some height, that is drawn on from top to bottom."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self._check(height)  # before the work
        self.figure = Figure(dpi=DPI, facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self._boxes: list[Rectangle] = []
        self._colors: list[Any] = []

    def text(self, x: int, y: int, text: str, size: float = 7, *, align: Align = "left", **style: Any) -> None:
        """Text with its top at y, drawn as it is: no `$formula$` is looked for."""
        style = {"color": INK, "va": "top", **style}
        self.axes.text(x, y, literal(text), size=size, ha=align, parse_math=False, usetex=False, **style)

    def picture(self, x: int, y: int, pixels: NDArray[np.uint8]) -> None:
        """Pixels (h, w, 3), one for one."""
        height, width = pixels.shape[:2]
        extent = (x, x + width, y + height, y)
        self.axes.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto")

    def box(self, x: float, y: float, width: float, height: float, color: Any) -> None:
        """A filled rectangle."""
        self._boxes.append(Rectangle((x, y), width, height))
        self._colors.append(color)

    def finish(self, height: int) -> Figure:
        """The figure, cut at this height."""
        self._check(height)
        if self._boxes:
            self.axes.add_collection(PatchCollection(self._boxes, facecolors=self._colors, linewidths=0))
        self.figure.set_size_inches(self.width / DPI, height / DPI)
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(height, 0)
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


def wrap(text: str, width: int, size: float = 7) -> list[str]:
    """Lines of words that fit into some pixels."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return [line for line in lines if line]


def to_rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (…, C, H, W) to (…, H, W, 3): grey, colours, the first three of more channels, the mean of two."""
    last = np.moveaxis(images, -3, -1)
    if last.shape[-1] >= 3:
        return last[..., :3]
    grey = last.mean(-1, keepdims=True).round().astype(np.uint8)
    return np.repeat(grey, 3, axis=-1)


def channel_note(channels: int) -> str | None:
    """What `to_rgb` does with images that are neither grey nor in colour."""
    if channels in (1, 3):
        return None
    way = "the first three are drawn as red, green and blue" if channels > 3 else "their mean is drawn as grey"
    return f"The images have {channels} channels: {way}."


def to_png(figure: Figure) -> bytes:
    """The bytes of a picture; the same for the same picture."""
    file = io.BytesIO()
    with rc_context({"savefig.bbox": "standard"}):  # the user's own settings must not crop the page
        figure.savefig(file, format="png", dpi=DPI, pil_kwargs={"compress_level": 3})  # twice as fast as 6, as small
    return file.getvalue()


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
