"""k-means on patches: the tokenizer of ClusterMIM (the paper's section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Self

import torch
from torch import Tensor

from clustermim.data.source import Source
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError, TokenizerError
from clustermim.patches import grid_size, patchify
from clustermim.progress import log_info, track
from clustermim.tokenizers.backends import BACKENDS, authors_kmeans
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.lloyd import MIN_REDUCED, Log, distinct_pool
from clustermim.tokenizers.nearest import nearest
from clustermim.tokenizers.sampling import PatchSample, draw_patches
from clustermim.tokenizers.stream import stream_epoch

Space = Literal["pixel", "pixel-norm"]
Backend = Literal["torch", "sklearn", "faiss"]
Order = Literal["shuffled", "dataset"]

BATCH = 256  # images in a streaming mini-batch, as the authors use


def embed(patches: Tensor, space: Space) -> Tensor:
    """Patches (…, d) in bytes or [0, 1] to the vectors that are clustered: as they are, or each normalised."""
    vectors = patches.float().div(255) if patches.dtype == torch.uint8 else patches
    if space == "pixel":
        return vectors
    variance, mean = torch.var_mean(vectors, dim=-1, keepdim=True)
    return (vectors - mean) / (variance + 1e-6).sqrt()  # the normalisation of MAE's pixel targets


class KMeansTokenizer(Tokenizer):
    """Ids are the nearest of k cluster centres of patches.

    Args:
        k: number of clusters.
        patch_size: side of a patch in pixels.
        space: `pixel`, or `pixel-norm` for patches with zero mean and unit variance.
        max_patches: patches held in memory for k-means++ and Lloyd's iterations.
        epochs: passes of streaming mini-batches over every patch of the source, after that.
        iterations: Lloyd's iterations in each stage, at most.
        backend: whose k-means: ours (`torch`), `sklearn` or `faiss`.
        order: `dataset` (sklearn only) streams in the order of the source and takes the initial centres from the
            first batch, as the authors of the paper do.
        seed: the same seed gives the same centres.
    """

    kind = "kmeans"
    centers_: Tensor  # (k, d) float32
    inertia_: float  # mean squared distance of a patch to its centre
    patches_: int  # patches used
    images_: int  # images they came from

    def __init__(
        self,
        k: int,
        patch_size: int,
        space: Space = "pixel",
        max_patches: int = 262_144,
        epochs: int = 0,
        iterations: int = 30,
        backend: Backend = "torch",
        order: Order = "shuffled",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.k = self.vocab_size = k
        self.patch_size = patch_size
        self.space: Space = space
        self.max_patches = max_patches
        self.epochs = epochs
        self.iterations = iterations
        self.backend: Backend = backend
        self.order: Order = order
        self.seed = seed

    def config(self) -> dict[str, Any]:
        names = (
            "k",
            "patch_size",
            "space",
            "max_patches",
            "epochs",
            "iterations",
            "backend",
            "order",
            "seed",
        )
        return {name: getattr(self, name) for name in names}

    def fitted(self) -> dict[str, Any]:
        own = {"inertia": self.inertia_, "patches": self.patches_, "images": self.images_}
        return {**super().fitted(), **own}

    def tensors(self) -> dict[str, Tensor]:
        return {"centers": self.centers_}

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        self.channels_ = fitted["channels"]
        self.inertia_, self.patches_, self.images_ = fitted["inertia"], fitted["patches"], fitted["images"]
        self.register_buffer("centers_", tensors["centers"])
        if self.centers_.shape != (self.k, self.patch_size**2 * self.channels_):
            raise ValueError(f"its centres have shape {tuple(self.centers_.shape)}")
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        patches = patchify(images, self.patch_size)  # (B, N, d)
        batch, count, _ = patches.shape
        ids, _ = nearest(embed(patches.flatten(0, 1), self.space), self.centers_)
        return ids.reshape(batch, count)

    def center_patches(self) -> Tensor:
        """Centres as pictures (k, C, p, p): pixels in [0, 1]; normalised patches around mid-grey."""
        p = self.patch_size
        pictures = self.centers_.reshape(self.k, p, p, self.channels_).permute(0, 3, 1, 2)
        return (pictures if self.space == "pixel" else pictures * 0.2 + 0.5).clamp(0, 1)

    def distances(self, images: Tensor, ids: Tensor) -> Tensor:
        """Squared distances (B, N) of the patches to the centres of their tokens (B, N)."""
        return (self._embed(patchify(images, self.patch_size)) - self.centers_[ids]).square_().sum(-1)

    def fit(self, source: Source, log: Log | None = None) -> Self:
        """Cluster the patches of a source; `log` receives the inertia of every iteration."""
        log = log or (lambda **values: None)
        self._check(source)
        sample = draw_patches(source, self.patch_size, self.max_patches, self.seed, self._embed)
        distinct_pool(sample, self.k)  # k distinct patches, or an error, whatever the backend
        if self.order == "dataset":
            epochs = (self._vectors(source, None) for _ in range(self.epochs))
            centers = authors_kmeans(epochs, self.k, self.seed, log)
        else:
            centers = BACKENDS[self.backend](sample, self.k, self.seed, self.iterations, log)
            for epoch in range(self.epochs):
                centers = self._stream(source, epoch, sample, centers, log)
        self._describe_fit(source, sample, centers)
        log(patches=self.patches_, inertia=self.inertia_, final=True)
        return self

    def _check(self, source: Source) -> None:
        """Refuse settings that cannot work, and say what the fit will hold in memory."""
        for name, least in (
            ("k", 1),
            ("patch_size", 1),
            ("epochs", 0),
            ("iterations", 1),
            ("max_patches", self.k),
        ):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} {getattr(self, name)} is too small: {least} at least")
        if self.space == "pixel-norm" and self.patch_size == source.shape[0] == 1:
            raise ConfigError("a patch of one value has no spread to be normalised by: choose a larger --patch-size")
        if self.order == "dataset" and (self.backend != "sklearn" or not self.epochs or world_size() > 1):
            raise ConfigError("--order dataset needs --backend sklearn, --epochs 1 or more, and a single process")
        if world_size() > 1 and self.backend != "torch":
            raise ConfigError(f"--backend {self.backend} works in a single process: use --backend torch")
        rows, columns = grid_size(*source.shape[1:], self.patch_size)
        total = len(source) * rows * columns
        used = min(total, self.max_patches)
        size = self.patch_size**2 * source.shape[0]
        bytes_each = size + 4 * (min(size, MIN_REDUCED) if self.backend == "torch" else size)
        stream = f"; then {self.epochs} passes over all of them in mini-batches" if self.epochs else ""
        memory = f"about {used * bytes_each / 1e6:.0f} MB"
        log_info(f"k-means: {used:,} of {total:,} patches of {size} numbers in memory, {memory}{stream}")

    def _embed(self, patches: Tensor) -> Tensor:
        return embed(patches, self.space)

    def _vectors(self, source: Source, seed: int | None) -> Iterator[Tensor]:
        """All patches of a source as vectors, a mini-batch at a time, equally many batches on every rank."""
        batches = source.batches(BATCH, seed=seed, rank=rank(), world_size=world_size())
        steps = -(-len(source) // (BATCH * world_size()))
        nothing = torch.empty(0, self.patch_size**2 * source.shape[0])
        for _ in track(range(steps), "streaming patches", total=steps):
            batch = next(batches, None)
            yield (nothing if batch is None else self._embed(patchify(batch.images, self.patch_size).flatten(0, 1)))

    def _stream(self, source: Source, epoch: int, sample: PatchSample, centers: Tensor, log: Log) -> Tensor:
        """One pass over every patch, from centres that weigh what they hold of the sample."""
        held = [torch.bincount(nearest(sample[rows], centers)[0], minlength=self.k) for rows in sample.chunks()]
        counts = all_reduce_sum(torch.stack(held).sum(0))
        vectors = self._vectors(source, self.seed + 1 + epoch)
        centers, inertia, reseeded = stream_epoch(vectors, centers, counts)
        log(epoch=epoch + 1, inertia=inertia, reseeded=reseeded)
        return centers

    def _describe_fit(self, source: Source, sample: PatchSample, centers: Tensor) -> None:
        """Set the fitted attributes; the inertia is that of the sample."""
        self.channels_ = source.shape[0]
        self.register_buffer("centers_", centers)
        cost = sum(float(nearest(sample[rows], centers)[1].double().sum()) for rows in sample.chunks())
        cost, patches, images = all_reduce_sum(
            torch.tensor([cost, len(sample), sample.images], dtype=torch.float64)
        ).tolist()
        self.inertia_ = cost / patches
        self.patches_, self.images_ = round(patches), round(images)
        if self.epochs:
            rows, columns = grid_size(*source.shape[1:], self.patch_size)
            self.images_ = len(source) - len(source.skipped)
            self.patches_ = self.images_ * rows * columns
        if not math.isfinite(self.inertia_):
            raise TokenizerError("k-means met values that are not finite")
