"""The stages that make tokenizers and use them: `clustermim fit …` and `clustermim tokenize`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from clustermim.data import Source, open_source
from clustermim.distributed import rank, ranks
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.patches import grid_size
from clustermim.progress import say, warn_skipped
from clustermim.runs import Run, open_run
from clustermim.tokenizers import (
    KMeansTokenizer,
    LabelTokenizer,
    RandomTokenizer,
    Tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenize,
)
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

    _fit(tokenizer, fit, data, out, overwrite)


def fit_random(data: str, out: str, k: int = 50, patch_size: int = 16, seed: int = 0, overwrite: bool = False) -> None:
    """Make the tokenizer that knows nothing: ids drawn at random for every image, the same each time.

    Args:
        data: where the images are; only their number of channels is used.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels.
        seed: another seed gives other ids.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = RandomTokenizer(k, patch_size, seed)
    _fit(tokenizer, lambda source, run: {"vocab_size": tokenizer.fit(source).vocab_size}, data, out, overwrite)


def fit_labels(data: str, out: str, patch_size: int = 16, overwrite: bool = False) -> None:
    """Make the oracle: the id of every patch is the class of its image. It needs labels wherever it is used.

    Args:
        data: where the labelled images are.
        out: the run folder to write.
        patch_size: side of a patch in pixels.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = LabelTokenizer(patch_size)
    _fit(tokenizer, lambda source, run: {"vocab_size": tokenizer.fit(source).vocab_size}, data, out, overwrite)


def tokenize_source(tokenizer: str, data: str, out: str, overwrite: bool = False) -> None:
    """Write the ids of every patch of a data source to a .npy file, int32 of shape (images, patches).

    Args:
        tokenizer: the folder of a fitted tokenizer.
        data: where the images are.
        out: the .npy file to write; an image that could not be read has ids −1.
        overwrite: replace an existing file.
    """
    path = Path(out)
    if path.suffix != ".npy":
        raise ConfigError(f"--out {out} must end in .npy")
    if path.exists() and not overwrite:
        raise RunError(f"{path} exists; choose another --out, or replace it with --overwrite")
    loaded, source = load_tokenizer(tokenizer), open_source(data)
    rows, columns = grid_size(*source.shape[1:], loaded.patch_size)

    def write(file: BinaryIO) -> None:
        header = {"descr": "<i4", "fortran_order": False, "shape": (len(source), rows * columns)}
        np.lib.format.write_array_header_1_0(file, header)
        row = 0
        for batch, ids in tokenize(loaded, source):
            found = np.full((int(batch.indices[-1]) + 1 - row, rows * columns), -1, dtype="<i4")
            found[batch.indices.numpy() - row] = ids.numpy()
            file.write(found.tobytes())
            row += len(found)
        file.write(np.full((len(source) - row, rows * columns), -1, dtype="<i4").tobytes())

    write_atomic(path, write)
    warn_skipped(source.skipped)
    print(f"wrote the ids of {len(source):,} images × {rows * columns} patches to {path}")


def _fit(
    tokenizer: Tokenizer, fit: Callable[[Source, Run], dict[str, Any]], data: str, out: str, overwrite: bool
) -> None:
    """Fit, save and describe a tokenizer in a run folder."""
    config = {"data": data, **tokenizer.config()}
    with ranks():
        with open_run(out, f"fit {tokenizer.kind}", config, overwrite=overwrite) as run:
            source = open_source(data)
            results = fit(source, run)
            save_tokenizer(tokenizer, run.folder)
            run.summary = {"results": results, "data": source.describe()}
        warn_skipped(source.skipped)
        say(", ".join(f"{name} {value:,.6g}" for name, value in results.items()))
        if rank() == 0:
            print(f"wrote a {tokenizer.kind} tokenizer with {tokenizer.vocab_size} tokens to {out}")
