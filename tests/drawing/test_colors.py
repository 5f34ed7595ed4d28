"""Colours of tokens."""

from __future__ import annotations

import numpy as np

from clustermim.drawing.colors import token_colors


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
