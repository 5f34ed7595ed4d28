"""k-means on the patch features of a teacher: ClusterMIM's second kind of tokenizer (the paper's section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from clustermim.data.source import Source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError, TeacherError, TokenizerError
from clustermim.patches import grid_size
from clustermim.progress import log_info, track
from clustermim.teachers import EncoderTeacher, Teacher, open_teacher
from clustermim.tokenizers.backends import BACKENDS
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.feature_sample import FeatureSample, add_image_mean, cached_features, draw_features
from clustermim.tokenizers.feature_space import CHUNK, FeatureSpace
from clustermim.tokenizers.kmeans import BATCH, Backend
from clustermim.tokenizers.lloyd import Log, distinct_pool
from clustermim.tokenizers.nearest import nearest
from clustermim.tokenizers.stream import stream_epoch

WEIGHTS = "teacher."  # begins the names of an encoder's weights among the saved tensors


class FeatureKMeansTokenizer(Tokenizer):
    """Ids are the nearest of k cluster centres of a teacher's patch features.

    Args:
        k: number of clusters.
        patch_size: side of a patch in pixels.
        teacher: what `open_teacher` takes.
        image_mean_weight: add so many times the mean feature of the whole image to that of each patch, first of all, so
            that tokens tell what a patch is and what kind of image it is in; −1 takes it away, so that they tell what
            a patch is among the others of its image.
        center_positions: take away the mean feature of each position, so that tokens do not tell where a patch is;
            None for where the teacher's features bear position.
        l2_normalize: bring features to length 1 after that.
        whiten: after that, so many principal components of unit variance; 0 for all numbers as they are.
        max_patches: patches whose features are held in memory for k-means++ and Lloyd's iterations.
        epochs: passes of streaming mini-batches over every patch of the source, after that.
        iterations: Lloyd's iterations in each stage, at most.
        backend: whose k-means: ours (`torch`), `sklearn` or `faiss`.
        seed: the same seed gives the same centres.
    """

    kind = "feature-kmeans"
    shows_means = True
    teacher_: Teacher
    space_: FeatureSpace
    grid_: tuple[int, int]  # rows and columns of the images it was fitted on
    centers_: Tensor  # (k, Q) float32
    pictures_: Tensor  # (k, p·p·C) uint8, the mean pixels of each token's patches
    inertia_: float  # mean squared distance of a vector to its centre
    patches_: int  # patches used
    images_: int  # images they came from

    def __init__(
        self,
        k: int,
        patch_size: int,
        teacher: str,
        center_positions: bool | None = None,
        l2_normalize: bool = False,
        whiten: int = 0,
        max_patches: int = 262_144,
        epochs: int = 0,
        iterations: int = 30,
        backend: Backend = "torch",
        seed: int = 0,
        image_mean_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.k = self.vocab_size = k
        self.patch_size = patch_size
        self.teacher = teacher
        self.center_positions = center_positions
        self.l2_normalize = l2_normalize
        self.whiten = whiten
        self.max_patches = max_patches
        self.epochs = epochs
        self.iterations = iterations
        self.backend: Backend = backend
        self.seed = seed
        self.image_mean_weight = image_mean_weight

    def config(self) -> dict[str, Any]:
        names = ("k", "patch_size", "teacher", "center_positions", "l2_normalize", "whiten", "max_patches")
        return {
            name: getattr(self, name)
            for name in (*names, "epochs", "iterations", "backend", "seed", "image_mean_weight")
        }

    def fitted(self) -> dict[str, Any]:
        own = {
            "inertia": self.inertia_,
            "patches": self.patches_,
            "images": self.images_,
            "grid": list(self.grid_),
            "teacher": self.teacher_.fingerprint(),
            **({"teacher_code": self.teacher_.code} if self.teacher_.code else {}),
        }
        # An encoder of this project comes along whole; any other teacher is found again by its name.
        if isinstance(self.teacher_, EncoderTeacher):
            own["encoder"] = self.teacher_.record()
        return {**super().fitted(), **own}

    def tensors(self) -> dict[str, Tensor]:
        space = {f"space.{name}": tensor for name, tensor in self.space_.state_dict().items()}
        own = {"centers": self.centers_, "pictures": self.pictures_, **space}
        if isinstance(self.teacher_, EncoderTeacher):
            own |= {WEIGHTS + name: tensor for name, tensor in self.teacher_.vit.state_dict().items()}
        return own

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        self.channels_ = fitted["channels"]
        self.inertia_, self.patches_, self.images_ = fitted["inertia"], fitted["patches"], fitted["images"]
        self.grid_ = (fitted["grid"][0], fitted["grid"][1])
        self.register_buffer("centers_", tensors["centers"])
        self.register_buffer("pictures_", tensors["pictures"])
        parts = (tensors[f"space.{name}"] for name in ("means", "middle", "axes"))
        self.space_ = FeatureSpace(self.l2_normalize, *parts)
        if len(self.centers_) != self.k or self.pictures_.shape != (self.k, self.patch_size**2 * self.channels_):
            raise ValueError(f"it has {len(self.centers_)} centres and {len(self.pictures_)} pictures of them")
        self.teacher_ = self._restore_teacher(fitted, tensors)
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        grid = grid_size(images.shape[2], images.shape[3], self.patch_size)
        if self.space_.centers_positions and grid != self.grid_:
            raise TokenizerError(
                f"the tokenizer takes away the mean of each position of a {self.grid_[0]}×{self.grid_[1]} grid, and "
                f"these images have {grid[0]}×{grid[1]} patches: resize them, or fit with --center-positions false"
            )
        ids, _ = nearest(self._vectors(images), self.centers_)
        return ids.reshape(len(images), -1)

    def center_patches(self) -> Tensor:
        """The mean pixels of each token's patches, in [0, 1], (k, C, p, p)."""
        p = self.patch_size
        return self.pictures_.float().div(255).reshape(self.k, p, p, self.channels_).permute(0, 3, 1, 2)

    @torch.no_grad()
    def distances(self, images: Tensor, ids: Tensor) -> Tensor:
        """Squared distances (B, N) of the features to the centres of their tokens (B, N)."""
        return (self._vectors(images).view(*ids.shape, -1) - self.centers_[ids]).square_().sum(-1)

    def fit(
        self,
        source: Source,
        log: Log | None = None,
        cache_features: bool = False,
        device: torch.device | None = None,
    ) -> Self:
        """Cluster the features of a source's patches; `log` receives the inertia of every iteration.

        With `cache_features` those of the fitting part are kept in the cache folder, for a fit with another k.
        The teacher computes on `device`, and all is on the CPU in the end.
        """
        log = log or (lambda **values: None)
        self._check()
        self.teacher_ = open_teacher(self.teacher).to(device=device)
        self.grid_ = grid_size(*source.shape[1:], self.patch_size)
        self._announce(source)
        draw = cached_features if cache_features else draw_features
        sample = draw(self.teacher_, source, self.patch_size, self.max_patches, self.seed, self.image_mean_weight)
        center = self.teacher_.has_position if self.center_positions is None else self.center_positions
        self.space_ = FeatureSpace.learn(sample, center, self.l2_normalize, self.whiten)
        vectors = self.space_.vectors(sample)
        distinct_pool(vectors, self.k)  # k distinct ones, or an error, whatever the backend
        centers = BACKENDS[self.backend](vectors, self.k, self.seed, self.iterations, log)
        for epoch in range(self.epochs):
            counts = all_reduce_sum(torch.bincount(nearest(vectors, centers)[0], minlength=self.k))
            stream = self._stream(source, self.seed + 1 + epoch)
            centers, inertia, reseeded = stream_epoch(stream, centers, counts)
            log(epoch=epoch + 1, inertia=inertia, reseeded=reseeded)
        self._describe_fit(source, sample, vectors, centers)
        self.teacher_.cpu()
        log(patches=self.patches_, inertia=self.inertia_, final=True)
        return self

    def _check(self) -> None:
        """Refuse settings that cannot work."""
        least = dict.fromkeys(("k", "patch_size", "iterations"), 1) | dict.fromkeys(("epochs", "whiten"), 0)
        least |= {"max_patches": self.k, "image_mean_weight": -1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)} is too small: {smallest} at least")
        if not math.isfinite(self.image_mean_weight):
            raise ConfigError(f"--image-mean-weight {self.image_mean_weight} must be a finite number")
        if world_size() > 1 and self.backend != "torch":
            raise ConfigError(f"--backend {self.backend} works in a single process: use --backend torch")

    def _announce(self, source: Source) -> None:
        """Refuse images that the teacher cannot take, and say what the fit will hold in memory."""
        self.teacher_.check(torch.empty(1, *source.shape))
        total = len(source) * self.grid_[0] * self.grid_[1]
        used = min(total, self.max_patches)
        # The features, and the vectors made of them; the pixels of the same patches, as bytes.
        each = 4 * (self.teacher_.dim + (self.whiten or self.teacher_.dim)) + self.patch_size**2 * source.shape[0]
        log_info(
            f"k-means: features of {used:,} of {total:,} patches, {self.teacher_.dim} numbers each, in memory, "
            f"about {used * each / 1e6:.0f} MB"
        )

    def _vectors(self, images: Tensor) -> Tensor:
        """The vectors (B·N, Q) of images (B, C, H, W)."""
        grid = grid_size(images.shape[2], images.shape[3], self.patch_size)
        features = add_image_mean(self.teacher_(images, grid), self.image_mean_weight)  # (B, N, D)
        positions = torch.arange(features.shape[1], device=images.device).repeat(len(images))  # (B·N,)
        vectors: Tensor = self.space_(features.flatten(0, 1), positions)
        return vectors

    def _stream(self, source: Source, seed: int) -> Iterator[Tensor]:
        """The vectors of all patches, a mini-batch at a time, equally many batches on every rank."""
        batches = source.batches(BATCH, seed=seed, rank=rank(), world_size=world_size())
        steps = -(-len(source) // (BATCH * world_size()))
        nothing = torch.empty(0, self.whiten or self.teacher_.dim)
        for _ in track(range(steps), "streaming features", total=steps):
            batch = next(batches, None)
            yield nothing if batch is None else self._vectors(to_float(batch.images))

    def _describe_fit(self, source: Source, sample: FeatureSample, vectors: Tensor, centers: Tensor) -> None:
        """Set the fitted attributes; inertia and pictures are those of the sample."""
        self.channels_ = source.shape[0]
        ids, distances = nearest(vectors, centers)
        counts = all_reduce_sum(torch.bincount(ids, minlength=self.k)).double()
        sums = torch.zeros(self.k, sample.patches.shape[1], dtype=torch.float64)
        for start in range(0, len(ids), CHUNK):
            rows = slice(start, start + CHUNK)
            sums.index_add_(0, ids[rows], sample.patches[rows].double())
        sums = all_reduce_sum(sums)
        # A token that no patch of the sample has gets the mean of all.
        means = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], sums.sum(0) / counts.sum())
        self.register_buffer("centers_", centers)
        self.register_buffer("pictures_", means.round().to(torch.uint8))
        self.inertia_ = float(all_reduce_sum(distances.double().sum()) / counts.sum())
        self.patches_, self.images_ = int(counts.sum()), int(all_reduce_sum(torch.tensor(sample.images)))
        if self.epochs:
            self.images_ = len(source) - len(source.skipped)
            self.patches_ = self.images_ * self.grid_[0] * self.grid_[1]
        if not math.isfinite(self.inertia_):
            raise TokenizerError("k-means met values that are not finite")

    def _restore_teacher(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Teacher:
        """The teacher that came along, or the one of the same name, if it still has the same weights."""
        if "encoder" in fitted:
            weights = {key.removeprefix(WEIGHTS): value for key, value in tensors.items() if key.startswith(WEIGHTS)}
            return EncoderTeacher.from_record(self.teacher, fitted["encoder"], weights)
        try:
            teacher = open_teacher(self.teacher)
        except TeacherError as error:
            raise TokenizerError(f"this tokenizer needs the teacher it was fitted with: {error}") from error
        if teacher.fingerprint() != fitted["teacher"]:
            raise TokenizerError(
                f"the teacher {self.teacher} has other weights than when this tokenizer was fitted: "
                "bring those back, or fit the tokenizer anew"
            )
        if fitted.get("teacher_code", teacher.code) != teacher.code:
            log_info(f"warning: the code of {self.teacher} has changed since this tokenizer was fitted: ids may differ")
        return teacher
