"""`clustermim fit kmeans`."""

from __future__ import annotations

import math
from typing import Any, Literal

from clustermim.data import Source
from clustermim.errors import ConfigError
from clustermim.fit.folder import fit_into
from clustermim.runs import Run
from clustermim.tokenizers import FeatureKMeansTokenizer, KMeansTokenizer
from clustermim.tokenizers.kmeans import Backend, Order
from clustermim.training import Device, find_device


def fit_kmeans(
    data: str,
    out: str,
    k: int = 50,
    patch_size: int = 16,
    space: Literal["pixel", "pixel-norm", "features"] = "pixel",
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
    context: float = 0.0,
    cache_features: bool = False,
    device: Device | None = None,
    overwrite: bool = False,
) -> None:
    """Fit a k-means tokenizer, the one of ClusterMIM, on the patches of a data source.

    The options from `teacher` to `device` are for the space `features`.

    Args:
        data: where the images are: `folder:PATH`, `cifar10/train`, `textures:`, …
        out: the run folder to write.
        k: number of clusters, the size of the codebook.
        patch_size: side of a patch in pixels.
        space: cluster raw pixels, patches normalised to zero mean and unit variance, or features of a teacher.
        max_patches: patches held in memory for k-means++ and Lloyd's iterations.
        epochs: passes of mini-batches over every patch, after that.
        iterations: Lloyd's iterations in each stage, at most.
        backend: whose k-means to use in memory.
        order: `dataset` with the sklearn backend repeats the procedure of the paper's authors.
        seed: the same seed gives the same files.
        teacher: whose features: `hf:NAME`, `hf:FOLDER`, `run:FOLDER`, `hog:`, `pixels:`, `module:PACKAGE:FACTORY`, …
        center_positions: take away the mean feature of each position; by default where a teacher's features bear it.
        l2_normalize: bring features to length 1.
        whiten: cluster so many principal components of unit variance; 0 for the features themselves.
        context: add so many times the mean feature of the whole image to that of each patch, so that tokens tell what
            a patch is and what kind of image it is in.
        cache_features: keep the teacher's features in the cache folder, for a fit with another k.
        device: where the teacher computes; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    if space == "features":
        if teacher is None:
            raise ConfigError("--space features needs --teacher, such as hf:FOLDER, run:FOLDER or hog:")
        if order != "shuffled":
            raise ConfigError(f"--order {order} is for pixels, not for --space features")
        kmeans = (max_patches, epochs, iterations, backend, seed)
        features = FeatureKMeansTokenizer(
            k, patch_size, teacher, center_positions, l2_normalize, whiten, *kmeans, context=context
        )
        _fit(features, {"cache_features": cache_features, "device": find_device(device)}, data, out, overwrite)
        return
    given: dict[str, object] = {"teacher": teacher, "center-positions": center_positions, "device": device}
    switches = {"l2-normalize": l2_normalize, "whiten": whiten, "context": context, "cache-features": cache_features}
    given |= {name: value or None for name, value in switches.items()}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name} is for --space features, not {space}")
    pixels = KMeansTokenizer(k, patch_size, space, max_patches, epochs, iterations, backend, order, seed)
    _fit(pixels, {}, data, out, overwrite)


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
