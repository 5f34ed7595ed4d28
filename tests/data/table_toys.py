"""Twenty small images with labels, and what any source of them must give."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from clustermim.data import Source

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(20) % 3
TRUE = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


def to_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PNGS = [to_png(pixels) for pixels in PIXELS]


def assert_true(source: Source) -> None:
    assert len(source) == 20
    assert source.shape == (3, 6, 5)
    batch = source.read([17, 2, 2, 9])
    assert torch.equal(batch.images, TRUE[[17, 2, 2, 9]])
    assert batch.labels is not None
    assert batch.labels.tolist() == [2, 2, 2, 0]
    everything = list(source.batches(7))
    assert [len(b.images) for b in everything] == [7, 7, 6]
    assert torch.equal(torch.cat([b.images for b in everything]), TRUE)
