"""Random views: bytes in, float32 in [0, 1] out, the same for the same seed and any number of channels."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from clustermim.data.augment import augmented, random_view


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_random_view_is_a_crop_in_another_light(channels: int) -> None:
    images = torch.randint(256, (6, channels, 8, 12), dtype=torch.uint8, generator=Generator().manual_seed(0))
    kept = images.clone()
    view = random_view(images, Generator().manual_seed(1))
    assert torch.equal(images, kept)
    assert view.shape == images.shape
    assert view.dtype == torch.float32
    assert 0 <= view.min() <= view.max() <= 1
    assert torch.equal(view, random_view(images, Generator().manual_seed(1)))
    assert not torch.allclose(view, augmented(images, "crop", Generator().manual_seed(1)))  # the same crop, unlit
    assert not torch.allclose(view, random_view(images, Generator().manual_seed(2)))
