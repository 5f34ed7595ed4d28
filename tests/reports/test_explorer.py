"""What the explorer is given: the right patches, counts and places, in bounded size, and what cannot be shown."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from toy_runs import TEXTURES, fit

from clustermim.data import open_source, to_float
from clustermim.drawing.colors import token_palette
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.reports.collect import collect
from clustermim.reports.explorer import Explorer, encode, histograms, make_explorer, make_sheet
from clustermim.reports.records import TokenizerRecord, make_records
from clustermim.tokenizers import load_tokenizer


def tokenizers(folder: Path) -> list[TokenizerRecord]:
    return make_records(collect([str(folder)])[0]).tokenizers


def explore(folder: Path, **options: Any) -> Explorer:
    return make_explorer(tokenizers(folder), **options)


def pixels(sheet: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The tiles (n, h, w, 3) of a sheet, as a browser would cut them."""
    with Image.open(io.BytesIO(base64.b64decode(sheet["sheet"]))) as picture:
        flat = np.asarray(picture.convert("RGB"))
    rows, columns, height, width = (sheet[key] for key in ("rows", "columns", "height", "width"))
    return flat.reshape(rows, height, columns, width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)


def test_tokens_patches_and_samples_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    fit(tmp_path / "km", 6)
    explorer = explore(tmp_path)
    (shown,), (source,) = explorer.tokenizers, explorer.sources
    tokenizer, images = load_tokenizer(tmp_path / "km"), open_source(TEXTURES)
    ids = tokenizer(to_float(images.read(range(40)).images))
    counts = np.bincount(ids.flatten().numpy(), minlength=6)
    assert dict(zip(shown["tokens"], shown["counts"], strict=True)) == {i: c for i, c in enumerate(counts) if c}
    assert shown["counts"] == sorted(shown["counts"], reverse=True)
    assert shown["patches"] == 40 * 24
    assert shown["grid"] == [4, 6]
    colors = token_palette(tokenizer)
    assert all(bytes.fromhex(color) == colors[int(token)].tobytes() for token, color in shown["colors"].items())
    assert {int(token) for token in shown["colors"]} >= {token for row in shown["ids"] for token in row}
    samples = pixels(source["sheet"])[: len(source["labels"])]  # small images are kept exactly
    again = tokenizer(to_float(np_to_images(samples)))
    assert again.tolist() == shown["ids"]
    assert source["labels"][0] in images.class_names
    tiles = pixels(shown["sheet"])
    assert len(tiles) >= 6 * shown["perToken"]
    for place, token in enumerate(shown["tokens"]):  # each patch of a token has that token
        start = place * shown["perToken"] + 1
        own = tiles[start : start + shown["filled"][place]]
        assert set(tokenizer(to_float(np_to_images(own))).flatten().tolist()) == {token}
    assert [sum(row[1::2]) for row in shown["histograms"]] == shown["counts"]


def np_to_images(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    return torch.from_numpy(pixels.copy()).movedim(-1, 1)  # (n, C, H, W)


def test_two_tokenizers_share_the_samples_of_a_source(tmp_path: Path) -> None:
    fit(tmp_path / "a", 4)
    fit(tmp_path / "b", 5)
    explorer = explore(tmp_path, images=16)
    assert [shown["source"] for shown in explorer.tokenizers] == [0, 0]
    assert len(explorer.sources) == 1
    assert {shown["images"] for shown in explorer.tokenizers} == {16}


def test_what_cannot_be_shown_is_told(tmp_path: Path, npz: Callable[..., str]) -> None:
    fit(tmp_path / "good", 4)
    grey = npz(30, 1, 8, 8)
    fit(tmp_path / "gone", 3, grey)
    (tmp_path / "images.npz").unlink()
    explorer = explore(tmp_path, trust_runs=True)
    assert [shown["title"] for shown in explorer.tokenizers] == ["good"]
    (line,) = explorer.left_out
    assert line.startswith("the tokens of gone are not shown: ")
    with pytest.raises(DataError):
        explore(tmp_path, data="npz:/no/such/file.npz")
    with pytest.raises(ConfigError, match="--images 0 is too small"):
        explore(tmp_path, images=0)
    (tmp_path / "gone" / "summary.json").unlink()
    (tmp_path / "gone" / "config.yaml").unlink()
    assert "name images with --data" in explore(tmp_path).left_out[0]


def test_data_that_fits_no_tokenizer_is_an_error(tmp_path: Path, npz: Callable[..., str]) -> None:
    fit(tmp_path / "km", 4)
    with pytest.raises(TokenizerError, match="1"):
        explore(tmp_path, data=npz(10, 1, 8, 8))


def test_unlabelled_images_have_no_histograms(tmp_path: Path, npz: Callable[..., str]) -> None:
    fit(tmp_path / "km", 3, npz(20, 3, 8, 8))
    explorer = explore(tmp_path, trust_runs=True)
    assert explorer.tokenizers[0]["histograms"] is None
    assert explorer.sources[0]["labels"] is None


def test_histograms_keep_the_most_frequent_classes() -> None:
    counts = np.zeros((2, 30), dtype=np.int64)
    counts[0, 5], counts[0, 2] = 7, 9
    counts[1] = np.arange(30)
    few, many = histograms(counts)
    assert few == [2, 9, 5, 7]
    assert many[:4] == [29, 29, 28, 28]
    assert len(many) == 24


def test_a_sheet_keeps_to_its_limit_and_small_pictures_exactly() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 3, 16, 16), dtype=np.uint8)
    large = make_sheet(noise, 16, 60_000)
    assert len(large["sheet"]) <= 80_000  # base64
    small = make_sheet(noise[:7, :, :4, :4], 16, 60_000)
    assert (pixels(small)[:7] == np.moveaxis(noise[:7, :, :4, :4], 1, -1)).all()
    with Image.open(io.BytesIO(base64.b64decode(encode(Image.new("RGB", (5, 3), "red"), 1000)))) as picture:
        assert picture.getpixel((4, 2)) == (255, 0, 0)


def test_tiles_shrink_to_their_side() -> None:
    images = np.zeros((2, 3, 8, 4), dtype=np.uint8)
    images[..., :4, :] = 200
    small = make_sheet(images, 4, 60_000)
    assert (small["height"], small["width"]) == (4, 2)
    assert (pixels(small)[:2, :2] == 200).all()
    assert (pixels(small)[:2, 2:] == 0).all()
    assert (pixels(make_sheet(images, 9, 60_000))[:2] == np.moveaxis(images, 1, -1)).all()
