"""Fitting on a stream takes the same memory whatever the number of images."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from clustermim.data import open_source
from clustermim.tokenizers import KMeansTokenizer
source = open_source("textures:?images={images}&noise=0&jitter=0")
KMeansTokenizer(k=16, patch_size=8, max_patches=20_000, epochs=1).fit(source)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(images: int) -> int:
    """Peak resident memory of a fit, in kB."""
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(images=images)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_images() -> None:
    # 1,000 images are 12 MB of pixels, 12,000 are 147 MB; neither is ever held
    small, large = peak(1_000), peak(12_000)
    assert large - small < 25_000
