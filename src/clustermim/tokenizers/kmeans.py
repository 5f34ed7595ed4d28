"""k-means on patches, their surroundings or their features: the tokenizers of ClusterMIM (the paper's section 3.2)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.data.cache import cache_folder, fingerprint_of
from clustermim.distributed import all_reduce_sum, world_size
from clustermim.errors import ConfigError, TeacherError, TokenizerError
from clustermim.options import flat
from clustermim.patches import grid_size
from clustermim.progress import log_info, track
from clustermim.teachers import EncoderTeacher, Teacher, hash_weights, open_teacher
from clustermim.threads import undivided
from clustermim.tokenizers.authors import authors_kmeans
from clustermim.tokenizers.base import Tokenizer, check_sizes
from clustermim.tokenizers.lloyd import Log, Shuffled, cluster, cluster_means, distinct_pool
from clustermim.tokenizers.nearest import Vectors, nearest_center
from clustermim.tokenizers.space import CHUNK, Sample, Space, draw_sample
from clustermim.training import Device, find_device
from clustermim.weights import check_tensor

BATCH = 256  # images in a streaming mini-batch, as the authors use
WHITE = 64  # components of whitened windows, where there are so many
WEIGHTS = "teacher."  # begins the names of an encoder's weights among the saved tensors

SpaceName = Literal["pixel", "pixel-norm", "pixel-white", "features"]

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
        epochs: passes of scikit-learn's mini-batch k-means over every patch, in the order of the source, as the paper's
            authors do; 0 for Lloyd's iterations.
        iterations: Lloyd's iterations in each stage, at most.
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
    seed: int = 0

    def check(self, k: int, patch_size: int, space: str, channels: int) -> None:
        """Refuse settings that cannot work, or that are for another space."""
        least = {"iterations": 1, "epochs": 0, "whiten": 0, "image_mean_weight": -1, "max_patches": k}
        sizes = {name: (getattr(self, name), value) for name, value in least.items()}
        check_sizes(k=(k, 1), patch_size=(patch_size, 1), **sizes)
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
        if self.epochs and world_size() > 1:
            raise ConfigError("--epochs, the procedure of the paper's authors, needs a single process")


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
        self, k: int = 50, patch_size: int = 16, space: SpaceName = "pixel", *, options: KMeansOptions = KMeansOptions()
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
        self.shows_means = space in ("pixel-white", "features")  # its centres are no pixels

    def config(self) -> dict[str, Any]:
        own = {"k": self.k, "patch_size": self.patch_size, "space": self.space, **vars(self.options)}
        if own["teacher"] is not None and not isinstance(own["teacher"], str):
            own["teacher"] = getattr(own["teacher"], "spec", "an encoder")
        return own

    def fitted(self) -> dict[str, Any]:
        found, teacher = super().fitted(), self.space_.teacher
        if teacher is not None:
            found |= {"teacher": hash_weights(teacher), **({"teacher_code": teacher.code} if teacher.code else {})}
        if isinstance(teacher, EncoderTeacher):  # it comes along whole; any other is found again by its name
            found["encoder"] = teacher.record()
        return found

    def tensors(self) -> dict[str, Tensor]:
        found = {"centers": self.centers_} | ({"pictures": self.pictures_} if self.shows_means else {})
        found |= {f"space.{name}": tensor for name, tensor in self.space_.named_buffers(recurse=False) if len(tensor)}
        if isinstance(self.space_.teacher, EncoderTeacher):
            weights = self.space_.teacher.encoder.backbone.state_dict()
            found |= {WEIGHTS + name: tensor for name, tensor in weights.items()}
        return found

    def check_saved(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        patch, dim = self.patch_size**2 * fitted["channels"], None
        if "encoder" in fitted:
            weights = {n.removeprefix(WEIGHTS): tensor for n, tensor in tensors.items() if n.startswith(WEIGHTS)}
            dim = EncoderTeacher.from_record("", fitted["encoder"], weights).dim
        if self.shows_means:
            check_tensor(tensors, "pictures", self.k, patch, dtype=torch.uint8)
        if "space.means" in tensors:
            dim = check_tensor(tensors, "space.means", math.prod(fitted["grid"]), dim).shape[1]
        if "space.axes" in tensors:
            axes = check_tensor(tensors, "space.axes", dim, None)
            check_tensor(tensors, "space.middle", len(axes))
            dim = axes.shape[1]
        check_tensor(tensors, "centers", self.k, dim if self.shows_means else patch)

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        weights = {name.removeprefix(WEIGHTS): tensors.pop(name) for name in list(tensors) if name.startswith(WEIGHTS)}
        own = {name: value for name, value in fitted.items() if name not in ("teacher", "teacher_code", "encoder")}
        parts = {name: tensors.pop(name) for name in list(tensors) if name.startswith("space.")}
        super().restore(own, tensors)
        self.space_ = self._space(self._restore_teacher(fitted, weights) if self.shows_means else None)
        for name, tensor in parts.items():
            setattr(self.space_, name.removeprefix("space."), tensor)
        width = len(self.space_.axes) or self.space_.means.shape[1] or self.centers_.shape[1]
        if self.space_.teacher is not None and width != self.space_.teacher.dim:
            raise ValueError(f"its centres are of features of another width than {self.space_.teacher.dim}")
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

    def center_vectors(self) -> Tensor:
        return self.centers_

    @torch.no_grad()
    def distances(self, images: Tensor, ids: Tensor) -> Tensor:
        """Squared distances (B, N) of the vectors of patches to the centres of their tokens (B, N)."""
        vectors: Tensor = self.space_(images)
        return (vectors.view(*ids.shape, -1) - self.centers_[ids]).square_().sum(-1)

    def fit(self, source: object, *, device: Device | None = None, log: Log | None = None) -> Self:
        """Cluster the patches of a source.

        Args:
            source: the images, as `clustermim.open` takes them.
            device: where a teacher computes; by default the fastest that is there. All is on the CPU in the end.
            log: receives the inertia of every iteration.
        """
        images, log, options = open_source(source), log or (lambda **values: None), self.options
        options.check(self.k, self.patch_size, self.space, images.shape[0])
        if not self.shows_means and device:
            raise ConfigError(f"--device is for --space features, not {self.space}")
        teacher = self._open_teacher(images.shape[0]) if self.shows_means else None
        self.space_, self.grid_ = self._space(teacher), list(grid_size(*images.shape[1:], self.patch_size))
        whiten, center = options.whiten, bool(options.center_positions)
        if teacher is not None:
            teacher.to(find_device(device)).check(torch.empty(1, *images.shape))
            center = teacher.has_position if options.center_positions is None else center
            whiten = whiten or (min(WHITE, teacher.dim) if self.space == "pixel-white" else 0)
        self._announce(images)
        sample = draw_sample(self.space_, images, options.max_patches, options.seed)
        self.space_.learn(sample, center, whiten)
        vectors = self.space_.vectors(sample)
        if options.epochs:
            distinct_pool(Shuffled(vectors, sample.keys), self.k)  # k distinct ones, or an error
            streams = (self._stream(images) for _ in range(options.epochs))
            centers = authors_kmeans(streams, self.k, options.seed, log, self._progress(images))
        else:
            work = cluster(vectors, self.k, keys=sample.keys, seed=options.seed, iterations=options.iterations, log=log)
            centers = cluster_means(vectors, work)
        self._describe_fit(images, sample, vectors, centers)
        if teacher is not None:
            teacher.cpu()
        log(patches=self.patches_, inertia=self.inertia_, final=True)
        return self

    def _progress(self, source: Source) -> Path:
        """The file of the cache for epochs that are done, of this fit alone."""
        what = json.dumps(self.config(), sort_keys=True, default=str)
        teacher = self.space_.teacher.version() if self.space_.teacher else ""
        name = fingerprint_of(source.fingerprint, source.contents(), what, teacher)
        return cache_folder() / "kmeans" / f"{name}.safetensors"

    def _stream(self, source: Source) -> Iterator[Tensor]:
        """The vectors of all patches, in the order of the source, a mini-batch at a time."""
        for batch in track(source.batches(BATCH), "streaming patches", total=-(-len(source) // BATCH)):
            yield self.space_(to_float(batch.images))

    @undivided()
    def _describe_fit(self, source: Source, sample: Sample, vectors: Vectors, centers: Tensor) -> None:
        """Set the fitted attributes; inertia and pictures are those of the sample."""
        ids, distances = nearest_center(vectors, centers)
        counts = ids.bincount(minlength=self.k).double()
        sums = torch.zeros(self.k if self.shows_means else 0, sample.patches.shape[1], dtype=torch.float64)
        for start in range(0, len(ids) if self.shows_means else 0, CHUNK):
            some = slice(start, start + CHUNK)
            sums.index_add_(0, ids[some], sample.patches[some].double())
        found = torch.tensor([float(distances.double().sum()), sample.images], dtype=torch.float64)
        cost, images = all_reduce_sum(found).tolist()
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
        """Say what the fit will hold in memory: bytes of pixels, or features and the vectors made of them."""
        total, teacher = len(source) * self.grid_[0] * self.grid_[1], self.space_.teacher
        used = min(total, self.options.max_patches)
        size, each = (self.patch_size**2 * source.shape[0], 1) if teacher is None else (teacher.dim, 8)
        passes = f"; {self.options.epochs} passes over all of them in mini-batches" if self.options.epochs else ""
        memory = f"about {used * size * each / 1e6:.0f} MB"
        log_info(f"k-means: {used:,} of {total:,} patches of {size} numbers in memory, {memory}{passes}")

    def _space(self, teacher: Teacher | None) -> Space:
        weights = (self.options.image_mean_weight, self.options.l2_normalize)
        return Space(self.patch_size, self.space == "pixel-norm", teacher, *weights)

    def _open_teacher(self, channels: int) -> Teacher:
        if self.space == "features":
            return open_teacher(self.options.teacher)
        window = self.options.window or 2 * self.patch_size + self.patch_size % 2
        return open_teacher(f"pixels:?patch={self.patch_size}&window={window}&normalize=1&channels={channels}")

    def _restore_teacher(self, fitted: dict[str, Any], weights: dict[str, Tensor]) -> Teacher:
        """The teacher that came along, or the one of the same name, if it still has the same weights."""
        name = self.options.teacher
        if "encoder" in fitted:
            return EncoderTeacher.from_record(str(name), fitted["encoder"], weights)
        try:
            teacher = self._open_teacher(fitted["channels"])
        except TeacherError as error:
            raise TokenizerError(f"this tokenizer needs the teacher it was fitted with: {error}") from error
        if hash_weights(teacher) != fitted["teacher"]:
            raise TokenizerError(
                f"the teacher {name} has other weights than when this tokenizer was fitted: "
                "bring those back, or fit the tokenizer anew"
            )
        if fitted.get("teacher_code", teacher.code) != teacher.code:
            log_info(f"warning: the code of {name} has changed since this tokenizer was fitted: ids may differ")
        return teacher
