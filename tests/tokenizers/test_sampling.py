"""The sample of patches: how many, from where, and shuffled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clustermim.data.arrays import ArraySource
from clustermim.tokenizers.space import FEWEST, Sample, Space, draw_sample


def numbered(images: int, patches: int) -> ArraySource:
    """One-channel images of 2×2 patches, in which every pixel of a patch is the number of its image or place."""
    pixels = np.zeros((images, 2, 2, 2 * patches), dtype=np.uint8)
    pixels[:, 0] = np.arange(images)[:, None, None]
    pixels[:, 1] = np.repeat(np.arange(patches), 2)[None, None]
    return ArraySource("numbered", pixels)


def draw(source: ArraySource, most: int, seed: int = 0) -> Sample:
    return draw_sample(Space(2), source, most, seed)


def test_takes_everything_when_it_fits() -> None:
    sample = draw(numbered(50, 12), 10_000)
    pairs = sample.patches.reshape(-1, 4, 2)[:, 0].long()  # (image, place) of each patch
    assert len(sample) == 600
    assert sample.images == 50
    assert torch.equal((pairs[:, 0] * 12 + pairs[:, 1]).sort().values, torch.arange(600))
    assert (pairs[:100, 0].diff() != 0).sum() > 80  # shuffled over images


@pytest.mark.parametrize(("most", "images"), [(450, 50), (160, 20), (8, 1)])
def test_spreads_a_small_sample_over_images(most: int, images: int) -> None:
    sample = draw(numbered(50, 12), most)
    pairs = sample.patches.reshape(-1, 4, 2)[:, 0].long()
    assert len(sample) == most
    assert sample.images == images
    assert len(pairs.unique(dim=0)) == most  # no patch twice
    counts = torch.bincount(pairs[:, 0], minlength=50)
    assert counts.max() <= max(FEWEST, -(-most // 50))


def test_depends_on_the_seed_only() -> None:
    source = numbered(50, 12)
    assert torch.equal(draw(source, 200).patches, draw(source, 200).patches)
    assert not torch.equal(draw(source, 200).patches, draw(source, 200, seed=1).patches)


def test_slices_of_bytes_are_vectors_in_0_to_1() -> None:
    pixels = torch.arange(0, 100, 5, dtype=torch.uint8).reshape(10, 2)
    vectors = Space(1).vectors(
        Sample(pixels, torch.zeros(10, dtype=torch.long), pixels, torch.rand(10), torch.zeros(1, 2), 10)
    )
    torch.testing.assert_close(vectors[3:5], torch.tensor([[30.0, 35.0], [40.0, 45.0]]) / 255)
    assert len(vectors) == 10
