"""`clustermim fit kmeans`."""

from __future__ import annotations

from typing import Any

from clustermim.data import Source
from clustermim.fit.folder import fit_into
from clustermim.runs import Run
from clustermim.tokenizers import KMeansTokenizer
from clustermim.tokenizers.kmeans import Backend, Order, Space


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
    overwrite: bool = False,
) -> None:
    """Fit a k-means tokenizer, the one of ClusterMIM, on the patches of a data source.

    Args:
        data: where the images are: `folder:PATH`, `cifar10/train`, `textures:`, …
        out: the run folder to write.
        k: number of clusters, the size of the codebook.
        patch_size: side of a patch in pixels.
        space: cluster raw pixels, or patches normalised to zero mean and unit variance.
        max_patches: patches held in memory for k-means++ and Lloyd's iterations.
        epochs: passes of mini-batches over every patch, after that.
        iterations: Lloyd's iterations in each stage, at most.
        backend: whose k-means to use in memory.
        order: `dataset` with the sklearn backend repeats the procedure of the paper's authors.
        seed: the same seed gives the same files.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = KMeansTokenizer(k, patch_size, space, max_patches, epochs, iterations, backend, order, seed)

    def fit(source: Source, run: Run) -> dict[str, Any]:
        tokenizer.fit(source, log=run.log)
        return {
            "vocab_size": k,
            "inertia": tokenizer.inertia_,
            "patches": tokenizer.patches_,
            "images": tokenizer.images_,
        }

    fit_into(tokenizer, fit, data, out, overwrite)
