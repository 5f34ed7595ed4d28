"""`clustermim fit kmeans`."""

from __future__ import annotations

import math
from typing import Any, Literal

from clustermim.data import Source, open_source
from clustermim.errors import ConfigError
from clustermim.runs import Run, check_not_inside
from clustermim.stages.fit.folder import fit_into
from clustermim.tokenizers import FeatureKMeansTokenizer, KMeansTokenizer
from clustermim.tokenizers.kmeans import Backend, Order
from clustermim.training import Device, find_device

Space = Literal["pixel", "pixel-norm", "pixel-white", "features"]

WHITE = 64  # components of whitened windows, where there are so many


def fit_kmeans(
    data: str,
    out: str,
    k: int = 50,
    patch_size: int = 16,
    space: Space = "pixel",
    max_patches: int = 262_144,
    epochs: int = 0,
    iterations: int = 30,
    backend: Backend = "torch",
    order: Order = "shuffled",
    seed: int = 0,
    teacher: str | None = None,
    center_positions: bool | None = None,
    l2_normalize: bool = False,
    whiten: int = 0,
    image_mean_weight: float = 0.0,
    cache_features: bool = False,
    device: Device | None = None,
    window: int = 0,
    overwrite: bool = False,
) -> None:
    """Fit a k-means tokenizer, the one of ClusterMIM, on the patches of a data source.

    The options from `teacher` to `device` are for the space `features`; all of them but `teacher`, and `window`, are
    also for `pixel-white`.

    Args:
        data: where the images are: `folder:PATH`, `cifar10/train`, `textures:`, …
        out: the run folder to write.
        k: number of clusters, the size of the codebook.
        patch_size: side of a patch in pixels.
        space: cluster raw pixels; patches normalised to zero mean and unit variance; windows around them, normalised
            and whitened, so that edges and textures count as much as colours; or features of a teacher.
        max_patches: patches held in memory for k-means++ and Lloyd's iterations.
        epochs: passes of mini-batches over every patch, after that.
        iterations: Lloyd's iterations in each stage, at most.
        backend: whose k-means to use in memory.
        order: `dataset` with the sklearn backend repeats the procedure of the paper's authors.
        seed: the same seed gives the same files.
        teacher: whose features: `hf:NAME`, `hf:FOLDER`, `run:FOLDER`, `hog:`, `pixels:`, `module:PACKAGE:FACTORY`, …
        center_positions: take away the mean feature of each position; by default where a teacher's features bear it.
        l2_normalize: bring features to length 1.
        whiten: cluster so many principal components of unit variance; 0 for the features themselves, and for 64 of
            `pixel-white`.
        image_mean_weight: add so many times the mean feature of the whole image to that of each patch, so that
            tokens tell what a patch is and what kind of image it is in; −1 takes it away.
        cache_features: keep the teacher's features in the cache folder, for a fit with another k.
        device: where the teacher computes; by default the fastest that is there.
        window: side of the windows of `pixel-white`; 0 for twice the patch, one more for an odd one.
        overwrite: replace a complete run in `out`.
    """
    given = {"teacher": teacher, "center-positions": center_positions, "device": device, "window": window or None}
    switches = {
        "l2-normalize": l2_normalize,
        "whiten": whiten,
        "image-mean-weight": image_mean_weight,
        "cache-features": cache_features,
    }
    check_not_inside(teacher, out, "the teacher")
    _refuse_foreign(space, given | {name: value or None for name, value in switches.items()}, order)
    if space in ("pixel", "pixel-norm"):
        pixels = KMeansTokenizer(k, patch_size, space, max_patches, epochs, iterations, backend, order, seed)
        _fit(pixels, {}, data, out, overwrite)
        return
    whose, components = (teacher, whiten) if teacher else _white_pixels(data, patch_size, window, whiten)
    kmeans = (max_patches, epochs, iterations, backend, seed)
    features = FeatureKMeansTokenizer(
        k, patch_size, whose, center_positions, l2_normalize, components, *kmeans, image_mean_weight=image_mean_weight
    )
    _fit(features, {"cache_features": cache_features, "device": find_device(device)}, data, out, overwrite)


def _refuse_foreign(space: Space, given: dict[str, object], order: Order) -> None:
    """Refuse the options that another space has; those that are None were not given."""
    own = {"pixel-white": set(given) - {"teacher"}, "features": set(given) - {"window"}}.get(space, set())
    for name, value in given.items():
        if value is not None and name not in own:
            home = "pixel-white" if name == "window" else "features"
            raise ConfigError(f"--{name} is for --space {home}, not {space}")
    if space == "features" and not given["teacher"]:
        raise ConfigError("--space features needs --teacher, such as hf:FOLDER, run:FOLDER or hog:")
    if order != "shuffled" and own:
        raise ConfigError(f"--order {order} is for pixels, not for --space {space}")


def _white_pixels(data: str, patch_size: int, window: int, whiten: int) -> tuple[str, int]:
    """The teacher that shows normalised windows around patches, and how many components of them to whiten."""
    channels, side = open_source(data).shape[0], window or 2 * patch_size + patch_size % 2  # as much on either side
    teacher = f"pixels:?patch={patch_size}&window={side}&normalize=1&channels={channels}"
    return teacher, whiten or min(WHITE, channels * side**2)


def _fit(
    tokenizer: KMeansTokenizer | FeatureKMeansTokenizer, options: dict[str, Any], data: str, out: str, overwrite: bool
) -> None:
    """Fit a tokenizer in a run folder."""

    def fit(source: Source, run: Run) -> dict[str, Any]:
        tokenizer.fit(source, log=run.log, **options)
        return {
            "vocab_size": tokenizer.k,
            "inertia": tokenizer.inertia_,
            "patches": tokenizer.patches_,
            "images": tokenizer.images_,
            **_psnr(tokenizer),
        }

    fit_into(tokenizer, fit, data, out, overwrite)


def _psnr(tokenizer: KMeansTokenizer | FeatureKMeansTokenizer) -> dict[str, float]:
    """Peak signal-to-noise ratio, in decibels, of patches replaced by their centres, where centres are pixels."""
    if not isinstance(tokenizer, KMeansTokenizer) or tokenizer.space != "pixel":
        return {}
    error = tokenizer.inertia_ / (tokenizer.patch_size**2 * tokenizer.channels_)
    return {"psnr": -10 * math.log10(max(error, 1e-12))}
