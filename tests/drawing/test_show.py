"""The picture: that it is written, holds its text literally, and that nothing overlaps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from clustermim.data import open_source
from clustermim.drawing import page, tokens
from clustermim.drawing.gallery import collect_tokens
from clustermim.drawing.page import literal, shorten, text_width, to_rgb
from clustermim.drawing.tokens import draw_tokens
from clustermim.errors import ConfigError, DataError, RunError, TokenizerError
from clustermim.stages.show import show
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer, Tokenizer

TEXTURES = "textures:?images=40&grid=4x6&patch=4"
NASTY = ["$x_1^", "<script>alert('a')</script>", "\"double\" & 'single'", "two\nlines", "W" * 300, r"\frac{$", "\udcff"]
Saved = Callable[[str, Tokenizer], str]
Npz = Callable[..., str]


def small(k: int, patch_size: int) -> KMeansTokenizer:
    return KMeansTokenizer(k, patch_size, iterations=3)


def unfitted(k: int, patch_size: int, channels: int) -> KMeansTokenizer:
    """Random centres, at once."""
    centers = torch.rand(k, patch_size**2 * channels, generator=torch.Generator().manual_seed(0))
    fitted = {"channels": channels, "inertia": 0.0, "patches": 0, "images": 0}
    return KMeansTokenizer(k, patch_size).restore(fitted, {"centers": centers})


def draw(data: str, tokenizer: Tokenizer, **sizes: Any) -> Figure:
    source = open_source(data)
    if not hasattr(tokenizer, "channels_"):
        tokenizer.fit(source)
    return draw_tokens(tokenizer, source, collect_tokens(tokenizer, source, **sizes))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def check_text(figure: Figure) -> None:
    """No text is read as a formula, leaves the page or overlaps another."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    shown: Any = [text for text in figure.findobj(Text) if text.get_text()]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in shown]
    assert not any(text.get_parse_math() for text in shown)
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for (one, a), (other, b) in combinations(zip(boxes, shown, strict=True), 2):
        # Two pixels of line height may touch; ink does not.
        apart = min(one.x1, other.x1) - max(one.x0, other.x0) <= 0 or min(one.y1, other.y1) - max(one.y0, other.y0) <= 2
        assert apart, (a.get_text(), b.get_text())


def test_writes_a_picture_and_says_where(saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder" / "tokens.png"
    show(saved(TEXTURES, small(8, 4)), TEXTURES, str(out))
    with Image.open(out) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.width >= 1200
        assert picture.height >= 800
    assert capsys.readouterr().out == f"wrote a picture of tokens to {out}\n"
    assert [path.name for path in out.parent.iterdir()] == ["tokens.png"]


def test_objects_and_texts_give_the_same_figure_and_a_notebook_shows_it(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, source = small(4, 4), open_source(TEXTURES)
    folder = saved(TEXTURES, tokenizer)
    figures = [tokens.show(tokenizer, source, images=2, tokens=3), tokens.show(folder, TEXTURES, images=2, tokens=3)]
    one, two = (figure._repr_png_() for figure in figures)
    assert one == two
    assert one.startswith(b"\x89PNG")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "thing", [torch.nn.Linear(2, 2), None, 3, small(4, 4)], ids=["module", "none", "int", "unfitted"]
)
def test_what_is_no_fitted_tokenizer_is_refused(thing: Any) -> None:
    with pytest.raises(TokenizerError):
        tokens.show(thing, TEXTURES)
    with pytest.raises(DataError):
        tokens.show(small(4, 4).fit(open_source(TEXTURES)), thing)


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_same_seed_gives_the_same_bytes(saved: Saved, tmp_path: Path, suffix: str) -> None:
    folder, (one, two) = saved(TEXTURES, small(4, 4)), (tmp_path / f"{name}{suffix}" for name in "ab")
    for out in (one, two):
        show(folder, TEXTURES, str(out), tokens=2, patches=2, images=1)
    assert one.read_bytes() == two.read_bytes()


def test_the_picture_names_what_it_shows() -> None:
    figure = draw(TEXTURES, small(8, 4), max_images=30)
    check_text(figure)
    found = texts(figure)
    assert "kmeans tokenizer: K = 8, patches of 4×4 pixels, 8 tokens used" in found
    assert any("textures/train?" in text and "30 of 40 images, 720 patches" in text for text in found)
    assert {"texture 0", "texture 3", "centre", "nearest", "rebuilt"} <= set(found)


@pytest.mark.parametrize("patch_size", [2, 8, 32])
@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_any_channels_patches_and_shapes_without_labels(npz: Npz, channels: int, patch_size: int) -> None:
    figure = draw(npz(6, channels, 32, 96), unfitted(3, patch_size, channels), tokens=5, patches=4, images=2)
    check_text(figure)
    found = texts(figure)
    assert not any("classes" in text for text in found)
    assert any(f"{channels} channels" in text for text in found) == (channels in (2, 5))


def test_the_layout_closes_up_without_labels(npz: Npz) -> None:
    sizes = {"tokens": 4, "patches": 30, "images": 1}
    bare = draw(npz(9, 3, 16, 16), small(4, 4), **sizes)
    named = draw(npz(9, 3, 16, 16, labels=np.arange(9) % 3), small(4, 4), **sizes)
    assert bare.get_figwidth() < named.get_figwidth()


def test_names_are_drawn_as_they_are(npz: Npz) -> None:
    names = np.array(NASTY)
    figure = draw(npz(14, 3, 16, 16, labels=np.arange(14) % 7, class_names=names), small(6, 4), images=7)
    check_text(figure)
    assert {"$x_1^", "<script>alert('a')</script>", r"two\nlines", r"\frac{$", r"\udcff"} <= set(texts(figure))


def test_many_classes_are_named_where_they_are_frequent(npz: Npz) -> None:
    names = np.array([f"{name}{i}" for i in range(10) for name in NASTY])
    figure = draw(npz(70, 3, 8, 8, labels=np.arange(70), class_names=names), small(6, 4))
    check_text(figure)
    assert "most frequent classes" in texts(figure)


@pytest.mark.parametrize("tokenizer", [RandomTokenizer(5, 4), LabelTokenizer(4)])
def test_tokenizers_without_centres_say_so(tokenizer: Tokenizer) -> None:
    figure = draw(TEXTURES, tokenizer)
    check_text(figure)
    assert {"mean", "random", "tokens"} <= set(texts(figure))
    assert "rebuilt" not in texts(figure)
    assert any("has no centres" in text for text in texts(figure))


def test_nasty_names_in_files(saved: Saved, npz: Npz, tmp_path: Path) -> None:
    data = npz(14, 3, 8, 8, labels=np.arange(14) % 7, class_names=np.array(NASTY))
    out = tmp_path / "$a_1^ <b> 'c'.svg"
    show(saved(data, small(4, 4)), data, str(out), tokens=3, patches=2)
    root = ElementTree.fromstring(out.read_bytes())
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_fonts_that_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    fonts = [SimpleNamespace(name=name) for name in ("DejaVu Sans", "Other", "PingFang SC")]
    monkeypatch.setattr(page.fontManager, "ttflist", fonts)
    assert page.font_families.__wrapped__() == ["DejaVu Sans", "PingFang SC"]


def test_characters_that_no_font_has(saved: Saved, npz: Npz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "font_families", lambda: ["DejaVu Sans"])
    data = npz(4, 3, 8, 8, labels=np.arange(4) % 2, class_names=np.array(["一", "二"]))
    with pytest.warns(UserWarning, match="missing from font"):
        show(saved(data, small(4, 4)), data, str(tmp_path / "a.png"), tokens=3, patches=2)
    assert (tmp_path / "a.png").exists()


def test_an_existing_picture_is_kept_unless_overwritten(saved: Saved, tmp_path: Path) -> None:
    folder, out = saved(TEXTURES, small(4, 4)), tmp_path / "tokens.PNG"
    out.write_bytes(b"mine")
    with pytest.raises(RunError, match="--overwrite"):
        show(folder, TEXTURES, str(out))
    assert out.read_bytes() == b"mine"
    show(folder, TEXTURES, str(out), tokens=1, patches=1, images=0, overwrite=True)
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["file/tokens.png", "x" * 300 + ".png"])
def test_a_place_that_cannot_be_written(saved: Saved, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"cannot write .*choose another --out") as caught:
        show(saved(TEXTURES, small(2, 4)), TEXTURES, str(tmp_path / name), tokens=1, patches=1, images=0)
    assert "\n" not in str(caught.value)


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(RunError, match="is a folder"):
        show("nowhere", TEXTURES, str(tmp_path / "a.png"), overwrite=True)


@pytest.mark.parametrize("name", ["tokens.jpg", "tokens", "png", "tokens.png.gz"])
def test_other_kinds_of_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.png, \.pdf, \.svg"):
        show("nowhere", TEXTURES, str(tmp_path / name))


def test_what_does_not_fit_together_is_said(saved: Saved, npz: Npz, tmp_path: Path) -> None:
    folder = saved(TEXTURES, LabelTokenizer(4))
    with pytest.raises(DataError, match="has no labels"):
        show(folder, npz(4, 3, 8, 8), str(tmp_path / "a.png"))
    with pytest.raises(TokenizerError, match="fitted on 3-channel images"):
        show(folder, npz(4, 1, 8, 8, labels=[0, 0, 0, 0]), str(tmp_path / "a.png"))
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("sizes", [{"patches": 1500}, {"tokens": 4000}])
def test_a_picture_too_large_to_draw_is_refused(sizes: dict[str, int]) -> None:
    tokenizer = RandomTokenizer(1 if "patches" in sizes else 4000, 2)
    with pytest.raises(ConfigError, match="ask for fewer --tokens, --patches or --images"):
        draw("textures:?images=9&patch=2&grid=40", tokenizer, **sizes)


def test_text_is_measured() -> None:
    assert literal("a\tb\x00é$") == r"a\tb\x00é$"
    assert text_width("WWW") > text_width("iii") > 0
    assert shorten("short", 1000) == "short"
    cut = shorten("a long text that has to give", 120)
    assert text_width(cut) <= 120
    assert cut.startswith("a l")
    assert cut.endswith("ve")
    assert shorten("anything", 0) == "…"


def test_channels_become_colours() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 6), dtype=np.uint8)
    assert np.array_equal(to_rgb(images), images[:, :3].transpose(0, 2, 3, 1))
    assert np.array_equal(to_rgb(images[:, :1]), np.repeat(images[:, 0, :, :, None], 3, -1))
    assert np.abs(to_rgb(images[:, :2])[..., 0] - images[:, :2].mean(1)).max() <= 0.5
