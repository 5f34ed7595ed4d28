"""Features as colours in the picture of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clustermim.data import open_source
from clustermim.drawing.colors import paler
from clustermim.drawing.page import to_png
from clustermim.drawing.reconstructions import Reconstruction, component_colors, draw_reconstruction, rows_of
from clustermim.models.masking import draw_from, random_mask
from clustermim.targets import FeatureTarget
from stub_teacher import StubTeacher


def test_colors_are_places_along_the_main_directions() -> None:
    """Independent coordinates of falling spread: they are the components, in this order and up to sign."""
    draws = torch.randn(4, 500, 5, generator=torch.Generator().manual_seed(0))
    truth = draws * torch.tensor([0.1, 4.0, 1.0, 0.2, 2.0]) + 7
    colors = component_colors(truth, truth).astype(float).reshape(-1, 3)
    for color, coordinate in enumerate((1, 4, 2)):
        match = np.corrcoef(colors[:, color], truth[..., coordinate].flatten())[0, 1]
        assert abs(match) > 0.97
    assert np.abs(colors.std(0) - 255 / 4).max() < 5  # two standard deviations reach from grey to the end
    mean = truth.mean((0, 1), keepdim=True)
    assert np.abs(component_colors(truth, mean).astype(int) - 128).max() <= 1
    assert set(component_colors(truth, mean + 1000 * (truth[:1, :1] - mean)).flatten().tolist()) <= {0, 255}


@pytest.mark.parametrize(("images", "patches", "width"), [(1, 1, 5), (2, 3, 1), (1, 4, 2), (2, 2, 40)])
def test_few_features(images: int, patches: int, width: int) -> None:
    truth = torch.randn(images, patches, width, generator=torch.Generator().manual_seed(0))
    colors = component_colors(truth, truth)
    assert colors.shape == (images, patches, 3)
    assert colors.dtype == np.uint8
    if width < 3:
        assert (colors[..., width:] == 128).all()  # no more directions
    same = component_colors(torch.ones(images, patches, width), torch.ones(images, patches, width))
    assert (same == 128).all()


def test_rows() -> None:
    source = open_source("textures:?images=32&grid=4x6&patch=4")
    target, batch = FeatureTarget(StubTeacher(), 4), source.read(range(3))
    images = batch.images / 255
    truth, mask = target(images), random_mask(draw_from(torch.Generator().manual_seed(1), 3), 24, 0.75)
    guess = torch.randn(3, 18, 5, generator=torch.Generator().manual_seed(2))
    seen = Reconstruction(images, (4, 6), mask, truth, guess)
    rows, notes = rows_of(target, seen)
    assert list(rows) == ["image", "visible", "true features", "predicted features"]
    hidden = seen.hidden.reshape(3, 4, 6).numpy()
    true, predicted = rows["true features"], rows["predicted features"]
    assert true.shape == predicted.shape == (3, 4, 6, 3)
    assert np.array_equal(predicted[~hidden], paler(true[~hidden]))
    expected = component_colors(truth, guess)  # (3, 18, 3), in the order of the mask
    for image, row, column in np.argwhere(hidden):
        place = mask.masked[image].tolist().index(row * 6 + column)
        assert np.array_equal(predicted[image, row, column], expected[image, place])
    assert "principal components" in notes[0]
    assert to_png(draw_reconstruction(target, source, batch, seen, "a title")).startswith(b"\x89PNG")
