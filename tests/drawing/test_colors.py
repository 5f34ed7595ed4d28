"""Colours of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clustermim.drawing.colors import DARKEST, LIGHTEST, similar_colors, token_colors, token_palette
from clustermim.tokenizers import KMeansTokenizer, RandomProjectionTokenizer, RandomTokenizer

DATA = "textures:?images=40&grid=4&patch=4&noise=0.1"


def test_a_token_has_one_colour_wherever_it_is() -> None:
    ids = np.random.default_rng(0).integers(0, 9000, (3, 5, 7))
    colors = token_colors(ids)
    assert colors.shape == (3, 5, 7, 3)
    assert colors.dtype == np.uint8
    assert all(np.array_equal(colors[place], token_colors([int(ids[place])])[0]) for place in np.ndindex(ids.shape))
    assert token_colors([0, 1, 8191]).tolist() == [[140, 84, 84], [45, 90, 201], [110, 200, 100]]


def test_thousands_of_tokens_are_told_apart() -> None:
    assert len(np.unique(token_colors(np.arange(4096)), axis=0)) > 4000
    few = token_colors(np.arange(50)).astype(int)
    distances = np.abs(few[:, None] - few).sum(-1) + 999 * np.eye(50, dtype=int)
    assert distances.min() > 12


def lightness(colors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """That of Oklab, by its definition."""
    rgb = colors / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    return np.asarray(np.cbrt(linear @ np.array(cones).T) @ [0.2104542553, 0.7936177850, -0.0040720468])


def test_like_centres_have_like_colours() -> None:
    generator = np.random.default_rng(0)
    places = generator.normal(size=(200, 3)) * [9, 3, 1]
    turned = np.linalg.qr(generator.normal(size=(40, 40)))[0][:3]  # the same places among 40 directions
    colors = similar_colors(places @ turned).astype(int)
    steps = lightness(colors)[places[:, 0].argsort()]
    assert abs(np.corrcoef(steps, np.arange(200))[0, 1]) > 0.98  # but for what a screen cannot show
    apart = np.linalg.norm(places[:, None] / [9, 3, 1] - places / [9, 3, 1], axis=-1)
    differ = np.linalg.norm(colors[:, None] - colors, axis=-1)
    near, far = differ[(apart < 0.3) & (apart > 0)].mean(), differ[apart > 3].mean()
    assert far > 4 * near
    assert np.array_equal(colors, similar_colors(places @ turned + 7))  # where they are is nothing


@pytest.mark.parametrize("shape", [(1, 5), (2, 1), (7, 2), (4, 90)])
def test_lightness_is_shared_out_evenly(shape: tuple[int, int]) -> None:
    centers = np.random.default_rng(0).normal(size=shape)
    colors = similar_colors(centers)
    assert colors.shape == (shape[0], 3)
    count = shape[0]
    expected = DARKEST + (LIGHTEST - DARKEST) * (np.arange(count) + 0.5) / count
    assert np.sort(lightness(colors)) == pytest.approx(expected, abs=0.04)


def test_equal_centres_do_no_harm() -> None:
    assert similar_colors(np.zeros((3, 4))).shape == (3, 3)


def test_light_tokens_are_light_and_what_has_no_centres_keeps_its_colours() -> None:
    tokenizer = KMeansTokenizer(12, 4, iterations=3).fit(DATA)
    pictures = tokenizer.center_patches().flatten(1).mean(1).numpy()
    colors = token_palette(tokenizer)
    assert np.corrcoef(lightness(colors), pictures)[0, 1] >= 0
    assert np.array_equal(colors, token_palette(tokenizer))
    random = RandomTokenizer(k=9, patch_size=4).fit(DATA)
    assert np.array_equal(token_palette(random), token_colors(np.arange(9)))
    projected = RandomProjectionTokenizer(k=16, patch_size=4).fit(DATA)
    assert np.array_equal(token_palette(projected), similar_colors(projected.codebook_.double().numpy()))
