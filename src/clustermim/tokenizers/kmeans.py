"""k-means on patches, their surroundings or their features: the tokenizers of ClusterMIM (the paper's section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Self

import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError, TeacherError, TokenizerError
from clustermim.options import flat
from clustermim.patches import grid_size
from clustermim.progress import log_info, track
from clustermim.teachers import EncoderTeacher, Teacher, open_teacher
from clustermim.tokenizers.backends import BACKENDS, authors_kmeans, stream_epoch
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.kmeans_options import KMeansOptions, SpaceName
from clustermim.tokenizers.lloyd import MIN_REDUCED, Log, Vectors, distinct_pool
from clustermim.tokenizers.nearest import nearest_center
from clustermim.tokenizers.space import CHUNK, Sample, Space, cached_sample, draw_sample
from clustermim.training import Device, find_device

BATCH = 256  # images in a streaming mini-batch, as the authors use
WHITE = 64  # components of whitened windows, where there are so many
WEIGHTS = "teacher."  # begins the names of an encoder's weights among the saved tensors


class KMeansTokenizer(Tokenizer):
    """Ids are the nearest of k cluster centres: argmin_j ‖x − c_j‖² of a patch's vector x.

    >>> tokenizer = KMeansTokenizer(k=8, patch_size=4, space="pixel-white").fit("digits/train")
    >>> tokenizer(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 4])
    """

    kind = "kmeans"
    space_: Space
    centers_: Tensor  # (k, Q) float32
    pictures_: Tensor  # (k, p·p·C) uint8, the mean pixels of each token's patches, where centres are no pixels
    grid_: list[int]  # rows and columns of the images it was fitted on
    inertia_: float  # mean squared distance of a vector to its centre
    patches_: int  # patches used
    images_: int  # images they came from

    @flat
    def __init__(
        self,
        k: int = 50,
        patch_size: int = 16,
        space: SpaceName = "pixel",
        *,
        options: KMeansOptions = KMeansOptions(),
    ) -> None:
        """Store the settings.

        Args:
            k: number of clusters, the size of the codebook.
            patch_size: side of a patch in pixels.
            space: cluster raw pixels; patches normalised to zero mean and unit variance; windows around them,
                normalised and whitened, so that edges and textures count as much as colours; or features of a teacher.
        """
        super().__init__()
        self.k = self.vocab_size = k
        self.patch_size, self.space, self.options = patch_size, space, options

    @property
    def shows_means(self) -> bool:  # type: ignore[override]
        """Whether its centres are no pixels."""
        return self.space in ("pixel-white", "features")

    def config(self) -> dict[str, Any]:
        own = {"k": self.k, "patch_size": self.patch_size, "space": self.space}
        teacher = self.options.teacher
        named = teacher if teacher is None or isinstance(teacher, str) else getattr(teacher, "spec", "an encoder")
        return own | {f.name: getattr(self.options, f.name) for f in fields(self.options)} | {"teacher": named}

    def fitted(self) -> dict[str, Any]:
        found, teacher = super().fitted(), self.space_.teacher
        if teacher is not None:
            found |= {"teacher": teacher.fingerprint(), **({"teacher_code": teacher.code} if teacher.code else {})}
        # An encoder of this project comes along whole; any other teacher is found again by its name.
        return found | ({"encoder": teacher.record()} if isinstance(teacher, EncoderTeacher) else {})

    def tensors(self) -> dict[str, Tensor]:
        found = {"centers": self.centers_} | ({"pictures": self.pictures_} if self.shows_means else {})
        found |= {f"space.{name}": tensor for name, tensor in self.space_.named_buffers(recurse=False) if len(tensor)}
        if isinstance(self.space_.teacher, EncoderTeacher):
            weights = self.space_.teacher.encoder.backbone.state_dict()
            found |= {WEIGHTS + name: tensor for name, tensor in weights.items()}
        return found

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        weights = {name.removeprefix(WEIGHTS): tensors.pop(name) for name in list(tensors) if name.startswith(WEIGHTS)}
        own = {name: value for name, value in fitted.items() if name not in ("teacher", "teacher_code", "encoder")}
        parts = {name: tensors.pop(name) for name in list(tensors) if name.startswith("space.")}
        super().restore(own, tensors)
        if len(self.centers_) != self.k or (self.shows_means and len(self.pictures_) != self.k):
            raise ValueError(f"its centres have shape {tuple(self.centers_.shape)}")
        self.space_ = self._space(self._restore_teacher(fitted, weights) if self.shows_means else None)
        for name, tensor in parts.items():
            setattr(self.space_, name.removeprefix("space."), tensor)
        return self

    def results(self) -> dict[str, Any]:
        """Also the peak signal-to-noise ratio, in decibels, of patches replaced by centres, where these are pixels."""
        found = {"inertia": self.inertia_, "patches": self.patches_, "images": self.images_}
        if self.space == "pixel":
            error = self.inertia_ / (self.patch_size**2 * self.channels_)
            found["psnr"] = -10 * math.log10(max(error, 1e-12))
        return super().results() | found

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        grid = grid_size(images.shape[2], images.shape[3], self.patch_size)
        if len(self.space_.means) and list(grid) != list(self.grid_):
            raise TokenizerError(
                f"the tokenizer takes away the mean of each position of a {self.grid_[0]}×{self.grid_[1]} grid, and "
                f"these images have {grid[0]}×{grid[1]} patches: resize them, or fit with --center-positions false"
            )
        return nearest_center(self.space_(images), self.centers_)[0].reshape(len(images), -1)

    def center_patches(self) -> Tensor:
        """Tokens as pictures (k, C, p, p) in [0, 1]: centres, normalised ones around mid-grey, or mean pixels."""
        flat = self.pictures_.float().div(255) if self.shows_means else self.centers_
        pictures = flat.reshape(self.k, self.patch_size, self.patch_size, self.channels_).permute(0, 3, 1, 2)
        return (pictures * 0.2 + 0.5 if self.space == "pixel-norm" else pictures).clamp(0, 1)

    @torch.no_grad()
    def distances(self, images: Tensor, ids: Tensor) -> Tensor:
        """Squared distances (B, N) of the vectors of patches to the centres of their tokens (B, N)."""
        vectors: Tensor = self.space_(images)
        return (vectors.view(*ids.shape, -1) - self.centers_[ids]).square_().sum(-1)

    def fit(
        self, source: object, *, device: Device | None = None, cache_features: bool = False, log: Log | None = None
    ) -> Self:
        """Cluster the patches of a source.

        Args:
            source: the images, as `clustermim.open` takes them.
            device: where a teacher computes; by default the fastest that is there. All is on the CPU in the end.
            cache_features: keep the teacher's features in the cache folder, for a fit with another k.
            log: receives the inertia of every iteration.
        """
        images, log, options = open_source(source), log or (lambda **values: None), self.options
        options.check(self.k, self.patch_size, self.space, images.shape[0])
        if not self.shows_means and (cache_features or device):
            name = "--cache-features" if cache_features else "--device"
            raise ConfigError(f"{name} is for --space features, not {self.space}")
        teacher = self._open_teacher(images.shape[0]) if self.shows_means else None
        self.space_, self.grid_ = self._space(teacher), list(grid_size(*images.shape[1:], self.patch_size))
        whiten, center = self._whiten(images.shape[0]), bool(options.center_positions)
        if teacher is not None:
            teacher.to(find_device(device)).check(torch.empty(1, *images.shape))
            center = teacher.has_position if options.center_positions is None else center
        self._announce(images)
        draw = cached_sample if cache_features else draw_sample
        sample = draw(self.space_, images, options.max_patches, options.seed)
        self.space_.learn(sample, center, whiten)
        vectors = self.space_.vectors(sample)
        distinct_pool(vectors, self.k)  # k distinct ones, or an error, whatever the backend
        centers = self._cluster(images, vectors, log)
        self._describe_fit(images, sample, vectors, centers)
        if teacher is not None:
            teacher.cpu()
        log(patches=self.patches_, inertia=self.inertia_, final=True)
        return self

    def _cluster(self, source: Source, vectors: Vectors, log: Log) -> Tensor:
        """The centres (k, Q): in memory, and then by passes over every patch from centres that weigh what they hold."""
        options = self.options
        if options.order == "dataset":
            passes = (self._stream(source, None) for _ in range(options.epochs))
            return authors_kmeans(passes, self.k, options.seed, log)
        centers = BACKENDS[options.backend](vectors, self.k, options.seed, options.iterations, log)
        for epoch in range(options.epochs):
            held = [nearest_center(vectors[rows], centers)[0].bincount(minlength=self.k) for rows in _steps(vectors)]
            counts = all_reduce_sum(torch.stack(held).sum(0))
            stream = self._stream(source, options.seed + 1 + epoch)
            centers, inertia, reseeded = stream_epoch(stream, centers, counts)
            log(epoch=epoch + 1, inertia=inertia, reseeded=reseeded)
        return centers

    def _stream(self, source: Source, seed: int | None) -> Iterator[Tensor]:
        """The vectors of all patches, a mini-batch at a time, equally many batches on every rank."""
        batches = source.batches(BATCH, seed=seed, rank=rank(), world_size=world_size())
        steps = -(-len(source) // (BATCH * world_size()))
        nothing = self.space_(torch.empty(0, *source.shape))
        for _ in track(range(steps), "streaming patches", total=steps):
            batch = next(batches, None)
            yield nothing if batch is None else self.space_(to_float(batch.images))

    def _describe_fit(self, source: Source, sample: Sample, vectors: Vectors, centers: Tensor) -> None:
        """Set the fitted attributes; inertia and pictures are those of the sample."""
        cost, counts = 0.0, torch.zeros(self.k, dtype=torch.float64)
        sums = torch.zeros(self.k if self.shows_means else 0, sample.patches.shape[1], dtype=torch.float64)
        for rows in _steps(vectors):
            ids, distances = nearest_center(vectors[rows], centers)
            cost += float(distances.double().sum())
            counts += ids.bincount(minlength=self.k)
            if self.shows_means:
                for start in range(0, len(ids), CHUNK):
                    some = slice(start, start + CHUNK)
                    sums.index_add_(0, ids[some], sample.patches[rows][some].double())
        cost, images = all_reduce_sum(torch.tensor([cost, sample.images], dtype=torch.float64)).tolist()
        counts, sums = all_reduce_sum(counts), all_reduce_sum(sums)
        self.register_buffer("centers_", centers)
        if self.shows_means:  # a token that no patch of the sample has gets the mean of all
            means = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], sums.sum(0) / counts.sum())
            self.register_buffer("pictures_", means.round().to(torch.uint8))
        self.inertia_, self.patches_, self.images_ = cost / float(counts.sum()), int(counts.sum()), round(images)
        if self.options.epochs:
            self.images_ = len(source) - len(source.skipped)
            self.patches_ = self.images_ * self.grid_[0] * self.grid_[1]
        if not math.isfinite(self.inertia_):
            raise TokenizerError("k-means met values that are not finite")
        self.channels_ = source.shape[0]

    def _announce(self, source: Source) -> None:
        """Say what the fit will hold in memory."""
        total = len(source) * self.grid_[0] * self.grid_[1]
        used, size = min(total, self.options.max_patches), self.patch_size**2 * source.shape[0]
        teacher = self.space_.teacher
        if teacher is None:
            each = size + 4 * (min(size, MIN_REDUCED) if self.options.backend == "torch" else size)
        else:  # the features, and the vectors made of them; the pixels of the same patches, as bytes
            each, size = 4 * (teacher.dim + (self._whiten(source.shape[0]) or teacher.dim)) + size, teacher.dim
        passes = f"; then {self.options.epochs} passes over all of them in mini-batches" if self.options.epochs else ""
        memory = f"about {used * each / 1e6:.0f} MB"
        log_info(f"k-means: {used:,} of {total:,} patches of {size} numbers in memory, {memory}{passes}")

    def _space(self, teacher: Teacher | None) -> Space:
        weights = (self.options.image_mean_weight, self.options.l2_normalize)
        return Space(self.patch_size, self.space == "pixel-norm", teacher, *weights)

    def _window(self) -> int:
        """Side of the windows of `pixel-white`: by default as much on either side of a patch, together its own side."""
        return self.options.window or 2 * self.patch_size + self.patch_size % 2

    def _whiten(self, channels: int) -> int:
        """How many principal components to cluster."""
        return self.options.whiten or (min(WHITE, channels * self._window() ** 2) if self.space == "pixel-white" else 0)

    def _open_teacher(self, channels: int) -> Teacher:
        if self.space == "features":
            return open_teacher(self.options.teacher)
        return open_teacher(f"pixels:?patch={self.patch_size}&window={self._window()}&normalize=1&channels={channels}")

    def _restore_teacher(self, fitted: dict[str, Any], weights: dict[str, Tensor]) -> Teacher:
        """The teacher that came along, or the one of the same name, if it still has the same weights."""
        name = self.options.teacher
        if "encoder" in fitted:
            return EncoderTeacher.from_record(str(name), fitted["encoder"], weights)
        try:
            teacher = self._open_teacher(fitted["channels"])
        except TeacherError as error:
            raise TokenizerError(f"this tokenizer needs the teacher it was fitted with: {error}") from error
        if teacher.fingerprint() != fitted["teacher"]:
            raise TokenizerError(
                f"the teacher {name} has other weights than when this tokenizer was fitted: "
                "bring those back, or fit the tokenizer anew"
            )
        if fitted.get("teacher_code", teacher.code) != teacher.code:
            log_info(f"warning: the code of {name} has changed since this tokenizer was fitted: ids may differ")
        return teacher


def _steps(vectors: Vectors) -> Iterator[slice]:
    """All rows of a tensor, or a few at a time of what is made when asked for."""
    size = len(vectors) if isinstance(vectors, Tensor) else CHUNK
    return (slice(start, start + size) for start in range(0, len(vectors), size))
