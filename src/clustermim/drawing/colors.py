"""Colours of tokens, alike for tokens that are alike, and cells of a grid in colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import hsv_to_rgb
from numpy.typing import NDArray

from clustermim.tokenizers import Tokenizer

# Steps of hue, saturation and value from one id to the next. The golden ratio spreads any number of hues evenly;
# the other two spread evenly in the plane and keep similar hues of a large codebook apart.
_STEPS = (0.6180339887, 0.7548776662, 0.5698402910)
_LOWEST, _RANGE = (0.0, 0.40, 0.55), (1.0, 0.50, 0.42)  # neither grey nor black

DARKEST, LIGHTEST = 0.40, 0.95  # lightness in Oklab, where equal steps look equal
STRONGEST = 0.13  # distance from grey in Oklab, most of which a screen can show at any lightness
# From Oklab to the cube roots of cone responses, and from these to linear RGB (Ottosson, 2020)
_TO_ROOTS = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728],
                      [1, -0.0894841775, -1.291485548]])  # fmt: skip
_TO_LINEAR = np.array([[4.0767416621, -3.3077115913, 0.2309699292], [-1.2684380046, 2.6097574011, -0.3413193965],
                       [-0.0041960863, -0.7034186147, 1.707614701]])  # fmt: skip

Colors = NDArray[np.uint8]
Floats = NDArray[np.float64]


def token_palette(tokenizer: Tokenizer) -> Colors:
    """A colour (K, 3) for each token: alike where centres are alike, and any where there are none."""
    centers, pictures = tokenizer.center_vectors(), tokenizer.center_patches()
    if centers is None:
        return token_colors(np.arange(tokenizer.vocab_size))
    light = None if pictures is None else pictures.flatten(1).mean(1).double().cpu().numpy()
    return similar_colors(centers.double().cpu().numpy(), light)


def similar_colors(centers: Floats, light: Floats | None = None) -> Colors:
    """Colours (K, 3) of centres (K, D): lightness and hue are their places along their three main directions.

    Tokens share out the lightness evenly, in the order of the first direction; the other two are an opposition of
    colours each. `light` (K,) says which way along the first is up.
    """
    count, places = len(centers), np.zeros((len(centers), 3))  # (K, 3)
    away = centers - centers.mean(0)  # (K, D)
    if centers.shape[1] > count:
        away = np.asarray(np.linalg.qr(away.T, mode="r"), dtype=np.float64).T  # (K, K), of the same products
    axes = np.linalg.eigh(away.T @ away)[1][:, :-4:-1]  # (D, ≤ 3), of the largest variance first
    places[:, : axes.shape[1]] = away @ axes
    places *= np.where(places.max(0) < -places.min(0), -1, 1)  # a sign that does not depend on the machine
    if light is not None and (light - light.mean()) @ places[:, 0] < 0:
        places[:, 0] *= -1
    rank = places[:, 0].argsort(kind="stable").argsort(kind="stable")  # (K,)
    lightness = DARKEST + (LIGHTEST - DARKEST) * (rank + 0.5) / count
    chroma = places[:, 1:] / (2 * places[:, 1:].std(0) + 1e-12)  # (K, 2), most in [−1, 1]
    chroma /= np.maximum(1, np.linalg.norm(chroma, axis=1, keepdims=True))
    return _from_oklab(np.column_stack([lightness, STRONGEST * chroma]))


def _from_oklab(lab: Floats) -> Colors:
    """Colours (K, 3) on a screen of places (K, 3) in Oklab; what a screen cannot show is cut off."""
    linear = np.clip((lab @ _TO_ROOTS.T) ** 3 @ _TO_LINEAR.T, 0, 1)
    values = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    colors: Colors = np.rint(255 * values).astype(np.uint8)
    return colors


def token_colors(ids: NDArray[np.int64] | Sequence[int]) -> Colors:
    """A colour (…, 3) for each of ids (…), that says nothing: always the same for the same id.

    >>> token_colors([0, 1]).shape
    (2, 3)
    """
    places = np.asarray(ids, dtype=np.float64)[..., None] * _STEPS % 1.0  # (…, 3) in [0, 1)
    colors: Colors = np.rint(hsv_to_rgb(_LOWEST + places * _RANGE) * 255).astype(np.uint8)
    return colors


def paler(colors: Colors, share: float = 0.35) -> Colors:
    """Colours (…, 3) of which only a share is left on white."""
    left: Colors = np.rint(255 - share * (255.0 - colors)).astype(np.uint8)
    return left


def enlarge(cells: NDArray[Any], side: int) -> NDArray[Any]:
    """Cells (M, rows, columns, …) as squares of so many pixels."""
    return cells.repeat(side, 1).repeat(side, 2)
