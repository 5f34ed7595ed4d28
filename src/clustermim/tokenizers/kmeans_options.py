"""The options of k-means, and which of them go together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from clustermim.distributed import world_size
from clustermim.errors import ConfigError
from clustermim.tokenizers.base import check_sizes

SpaceName = Literal["pixel", "pixel-norm", "pixel-white", "features"]
Backend = Literal["torch", "sklearn", "faiss"]
Order = Literal["shuffled", "dataset"]

# Options of the spaces that have a teacher, with the value that leaves them out.
OF_TEACHERS = {"teacher": None, "center_positions": None, "l2_normalize": False, "whiten": 0, "image_mean_weight": 0.0}


@dataclass(frozen=True)
class KMeansOptions:
    """What k-means clusters, and how.

    Args:
        teacher: for `features`, whose: `hf:NAME`, `hf:FOLDER`, `run:FOLDER`, `hog:`, `module:PACKAGE:FACTORY`, …; in
            Python also a teacher or an encoder.
        window: side of the windows of `pixel-white`; 0 for twice the patch, one more for an odd one.
        center_positions: take away the mean feature of each position, so that tokens do not say where a patch is; by
            default where a teacher's features say it.
        l2_normalize: bring features to length 1.
        whiten: cluster so many principal components of unit variance; 0 for the features themselves, and for 64 of
            `pixel-white`.
        image_mean_weight: add so many times the mean feature of the whole image to that of each patch, so that tokens
            also say what kind of image a patch is in; −1 takes it away.
        max_patches: patches held in memory for k-means++ and Lloyd's iterations.
        epochs: passes of mini-batches over every patch, after that.
        iterations: Lloyd's iterations in each stage, at most.
        backend: whose k-means to use in memory.
        order: `dataset` with the sklearn backend streams in the order of the source and takes the initial centres from
            the first batch, as the authors of the paper do.
        seed: the same seed gives the same centres.
    """

    teacher: str | None = None
    window: int = 0
    center_positions: bool | None = None
    l2_normalize: bool = False
    whiten: int = 0
    image_mean_weight: float = 0.0
    max_patches: int = 262_144
    epochs: int = 0
    iterations: int = 30
    backend: Backend = "torch"
    order: Order = "shuffled"
    seed: int = 0

    def check(self, k: int, patch_size: int, space: str, channels: int) -> None:
        """Refuse settings that cannot work, or that are for another space."""
        check_sizes(k=(k, 1), patch_size=(patch_size, 1), iterations=(self.iterations, 1), epochs=(self.epochs, 0))
        least = {"whiten": (self.whiten, 0), "image_mean_weight": (self.image_mean_weight, -1)}
        check_sizes(max_patches=(self.max_patches, k), **least)
        if not math.isfinite(self.image_mean_weight):
            raise ConfigError(f"--image-mean-weight {self.image_mean_weight} must be a finite number")
        if space == "features" and self.teacher is None:
            raise ConfigError("--space features needs --teacher, such as hf:FOLDER, run:FOLDER or hog:")
        pixels = space in ("pixel", "pixel-norm")
        for name, off in OF_TEACHERS.items():
            if getattr(self, name) != off and (pixels or (name == "teacher" and space != "features")):
                raise ConfigError(f"--{name.replace('_', '-')} is for --space features, not {space}")
        if self.window and space != "pixel-white":
            raise ConfigError(f"--window is for --space pixel-white, not {space}")
        if space == "pixel-norm" and patch_size == channels == 1:
            raise ConfigError("a patch of one value has no spread to be normalised by: choose a larger --patch-size")
        if self.order != "shuffled" and not pixels:
            raise ConfigError(f"--order {self.order} is for pixels, not for --space {space}")
        if self.order == "dataset" and (self.backend != "sklearn" or not self.epochs or world_size() > 1):
            raise ConfigError("--order dataset needs --backend sklearn, --epochs 1 or more, and a single process")
        if world_size() > 1 and self.backend != "torch":
            raise ConfigError(f"--backend {self.backend} works in a single process: use --backend torch")
