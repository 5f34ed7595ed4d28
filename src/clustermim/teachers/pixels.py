"""`pixels:`, the pixels of patches themselves, or of wider windows around them: a teacher without weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clustermim.errors import TeacherError
from clustermim.teachers.base import Teacher
from clustermim.teachers.spec import TeacherSpec

FLAT = 10 / 255**2  # is added to a window's variance, so that flat ones do not become noise


class PixelTeacher(Teacher):
    """The pixels of a window around every patch of side `patch`, mirrored beyond the border.

    Normalised windows have zero mean and about unit variance, channels taken together.
    """

    has_position = False

    def __init__(self, spec: str, patch: int, window: int, normalize: bool, channels: int) -> None:
        super().__init__()
        self.spec, self.patch, self.window, self.normalize, self.channels = spec, patch, window, normalize, channels
        self.dim = channels * window**2

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        height, width = images.shape[2:]
        margin = (self.window - self.patch) // 2
        if height % self.patch or width % self.patch or margin >= min(height, width):
            raise TeacherError(
                f"{self.spec}: images of {height}×{width} pixels do not have patches of {self.patch} in windows of "
                f"{self.window}: choose another ?patch= or &window="
            )
        padded = F.pad(images, (margin,) * 4, mode="reflect")
        windows = F.unfold(padded, self.window, stride=self.patch)  # (B, dim, N)
        if self.normalize:
            variance, mean = torch.var_mean(windows, dim=1, keepdim=True, correction=0)
            windows = (windows - mean) / (variance + FLAT).sqrt()
        return windows.reshape(len(images), self.dim, height // self.patch, width // self.patch)


def open_pixels(spec: TeacherSpec) -> PixelTeacher:
    """`pixels:?patch=4` is a patch, `pixels:?patch=4&window=8&normalize=1` a normalised window of 8 around it."""
    patch = spec.integer("patch", 4)
    window = spec.integer("window", patch, minimum=patch)
    if (window - patch) % 2:
        spec.refuse("window", f"{patch} or wider by an even number, the same on both sides")
    normalize = spec.integer("normalize", 0, minimum=0) > 0
    return PixelTeacher(spec.text, patch, window, normalize, spec.integer("channels", 3))
