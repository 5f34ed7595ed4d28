"""Clusters that learn with the encoder, after CAPI (Darcet et al., 2025): a teacher, prototypes, balanced assignments.

The teacher is a moving average of the encoder and sees the whole image. Its patch features are compared with K
prototypes, and Sinkhorn–Knopp makes of the similarities soft assignments that use all prototypes alike. The student
predicts those of masked patches. Here all this starts from k-means of the starting teacher's features, not from noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.data import Source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError, TokenizerError
from clustermim.models.encoder import Encoder
from clustermim.models.masking import Mask
from clustermim.targets.kinds import Target, TargetOptions
from clustermim.targets.sinkhorn import in_float32, sinkhorn, use_of
from clustermim.teachers import EncoderTeacher
from clustermim.teachers.base import hash_weights
from clustermim.tokenizers.lloyd import cluster, cluster_means
from clustermim.tokenizers.space import Space, draw_sample

DEFAULT_PROTOTYPES = 512
START_PATCHES, START_EACH = 65_536, 64  # patches for k-means at the start: so many, and so many for a prototype
START_ITERATIONS = 30  # of Lloyd, in each of its stages
STATISTICS = 0.9  # what of the means and variances of features stays after a step
LEAST_TEMPERATURE = 0.03  # exp(−2 / temperature) must be a number of float32


@dataclass(frozen=True)
class OnlineOptions:
    """Clusters that learn with the encoder, for `--target online`.

    Args:
        prototypes: of the clusters; by default 512. CAPI's are 16,384.
        teacher_momentum: what the teacher keeps of itself in a step, rising to 1 along a cosine; by default 0.99.
        constant_momentum: keep the teacher's momentum as it is.
        teacher_temperature: of the assignments, at least 0.03; by default 0.06, as CAPI's.
        student_temperature: of the predictions, and of the prototypes' own loss; by default 0.12, as CAPI's.
        prototype_rate: how fast prototypes turn, as a multiple of weights of size 1; by default 8. CAPI's, in half a
            million steps, is 0.5.
        sinkhorn_iterations: how often the assignments are balanced in a step; by default 3, as CAPI's.
        positions_together: balance the assignments of all positions together, not those of each by itself.
        queue_images: earlier images that the assignments are balanced with, for small batches.
        whiten: compare so many principal components of the features, of unit variance; 0 for the features themselves,
            and by default 64.
        image_mean_weight: add so many times the mean feature of the whole image to that of each patch; −1 takes it
            away.
    """

    prototypes: int | None = None  # all are off by default: an option that is on would rename the cells of all studies
    teacher_momentum: float | None = None
    constant_momentum: bool = False
    teacher_temperature: float | None = None
    student_temperature: float | None = None
    prototype_rate: float | None = None
    sinkhorn_iterations: int | None = None
    positions_together: bool = False
    queue_images: int = 0
    whiten: int | None = None
    image_mean_weight: float = 0.0

    def __post_init__(self) -> None:
        least = {"prototypes": 2, "sinkhorn_iterations": 1, "queue_images": 0, "whiten": 0}
        for name, smallest in least.items():
            if (value := getattr(self, name)) is not None and value < smallest:
                raise ConfigError(f"--{name.replace('_', '-')} {value} is too small: at least {smallest}")
        if (momentum := self.teacher_momentum) is not None and not 0 <= momentum < 1:
            raise ConfigError(
                f"--teacher-momentum {momentum:g} must be at least 0 and below 1: with 1 the teacher never learns"
            )
        lowest_of = {"teacher_temperature": LEAST_TEMPERATURE, "student_temperature": 0.01, "prototype_rate": 0.001}
        for name, lowest in lowest_of.items():
            if (value := getattr(self, name)) is not None and not lowest <= value < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} {value:g} must be a number from {lowest} on")
        if not math.isfinite(self.image_mean_weight):
            raise ConfigError(f"--image-mean-weight {self.image_mean_weight} must be a finite number")


class Assigned(NamedTuple):
    """What the teacher says of a batch, by position and image."""

    values: Tensor  # (N, B, K), how much of each prototype a patch is; rows sum to 1
    loss: Tensor  # (), the prototypes' own
    measures: dict[str, Tensor]  # (), to log

    def masked(self, mask: Mask) -> Tensor:
        """The assignments (B, m, K) of the patches to predict."""
        images = torch.arange(self.values.shape[1], device=self.values.device)
        return self.values.flatten(0, 1)[mask.masked * len(images) + images[:, None]]


class OnlineTarget(Target):
    """A teacher and prototypes, both of which learn; ids (B, N) are the nearest prototypes.

    Features of patches are turned into the principal axes of the start, their running mean at that position is taken
    away, they are divided by the running deviation of each component, and brought to length 1. Young features say
    mostly where a patch is; the means take that away while it changes.

    Buffers:
        axes: (D, Q), the directions, scaled to unit variance at the start; (0, 0) without whitening.
        means: (N, Q), running, of each position.
        variance: (Q,), running.
        queue: (images, N, Q), the vectors of earlier images, of all ranks.
    """

    kind = "online"
    axes: Tensor
    means: Tensor
    variance: Tensor
    queue: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        prototypes: int = DEFAULT_PROTOTYPES,
        teacher_momentum: float = 0.99,
        constant_momentum: bool = False,
        teacher_temperature: float = 0.06,
        student_temperature: float = 0.12,
        prototype_rate: float = 8.0,
        sinkhorn_iterations: int = 3,
        positions_together: bool = False,
        queue_images: int = 0,
        whiten: int = 64,
        image_mean_weight: float = 0.0,
    ) -> None:
        super().__init__()
        if whiten > encoder.width:
            raise ConfigError(f"--whiten {whiten} is more than the {encoder.width} numbers of the teacher's features")
        self.teacher = encoder.requires_grad_(False).eval()
        self.dim, self.patch_size, self.channels = prototypes, encoder.patch_size, encoder.channels
        self.momentum, self.constant_momentum = teacher_momentum, constant_momentum
        self.temperatures = teacher_temperature, student_temperature
        self.rate = prototype_rate
        self.iterations, self.together = sinkhorn_iterations, positions_together
        self.image_mean_weight = image_mean_weight
        patches, size = encoder.grid[0] * encoder.grid[1], whiten or encoder.width
        self.prototypes = nn.Parameter(torch.zeros(prototypes, size))
        self.register_buffer("axes", torch.zeros((encoder.width, size) if whiten else (0, 0)))
        self.register_buffer("means", torch.zeros(patches, size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("queue", torch.zeros(queue_images, patches, size))
        self.begun_with = hash_weights(self.teacher)

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> Self:
        """Refused: it is made of the encoder that it teaches."""
        raise ConfigError("the target online is made by pretrain, of the encoder that it teaches")

    def version(self) -> str:
        return self.begun_with

    def train(self, mode: bool = True) -> Self:
        """The teacher stays as it is: no stochastic depth."""
        super().train(mode)
        self.teacher.eval()
        return self

    def start(self, source: Source, seed: int) -> None:
        """Begin with the whitening and the clusters of the teacher's features, and with images in the queue."""
        space = Space(self.patch_size, False, EncoderTeacher("of the start", self.teacher), self.image_mean_weight)
        sample = draw_sample(space, source, max(START_PATCHES, START_EACH * self.dim), seed)
        space.learn(sample, True, self.axes.shape[1])
        vectors = F.normalize(cast(Tensor, space.vectors(sample)), dim=1)
        try:
            work = cluster(
                vectors, self.dim, keys=sample.keys, seed=seed, iterations=START_ITERATIONS, log=lambda **values: None
            )
        except TokenizerError as error:
            raise ConfigError(f"--prototypes: {str(error).replace('--k', '--prototypes')}") from error
        centers = F.normalize(cluster_means(vectors, work), dim=1)
        with torch.no_grad():
            # their length says how far a step of AdamW turns them: entries of about 1 are for long trainings
            self.prototypes.copy_(centers * (math.sqrt(centers.shape[1]) / self.rate))
            whole = len(self.axes) > 0
            self.means.copy_((space.means + space.middle) @ space.axes if whole else space.means)
            if whole:
                self.axes.copy_(space.axes)
            self._fill_queue(source, seed)

    def _fill_queue(self, source: Source, seed: int) -> None:
        """Images of the source, each again where there are too few."""
        rows, done = source.order(seed), 0
        while done < len(self.queue):
            images = source.read(np.resize(rows, len(self.queue))[done : done + 256]).images
            found = self.points(to_float(images.to(self.queue.device)))[: len(self.queue) - done]
            self.queue[done : done + len(found)] = found
            done += max(len(found), 1)

    @torch.no_grad()
    def points(self, images: Tensor, learn: bool = False) -> Tensor:
        """The vectors (B, N, Q) of the patches of images in [0, 1], of length 1, by statistics that `learn` of them."""
        features = self.teacher(images)[:, 1:].float()  # (B, N, D)
        with in_float32(images.device):
            if self.image_mean_weight:
                features = features + self.image_mean_weight * features.mean(1, keepdim=True)
            vectors = features @ self.axes if len(self.axes) else features  # (B, N, Q)
            if learn:
                self.means.lerp_(all_reduce_sum(vectors.mean(0)) / world_size(), 1 - STATISTICS)
            vectors = vectors - self.means
            if len(self.axes):
                if learn:
                    found = all_reduce_sum(vectors.square().mean((0, 1))) / world_size()
                    self.variance.lerp_(found, 1 - STATISTICS)
                vectors = vectors / (self.variance + 1e-6).sqrt()
            return F.normalize(vectors, dim=2)

    def assign(self, images: Tensor) -> Assigned:
        """What the teacher says of the patches of images (B, C, H, W) in [0, 1]; in training they join the queue."""
        points, soft = self.points(images, learn=self.training), self.temperatures[1]
        with in_float32(images.device):
            directions = F.normalize(self.prototypes.float(), dim=1)  # (K, Q)
            similarity = points.transpose(0, 1) @ directions.T  # (N, B, K)
            earlier = self.queue.transpose(0, 1) @ directions.detach().T if len(self.queue) else None
            values = self._balance(similarity.detach(), earlier)
            loss = F.cross_entropy((similarity / soft).flatten(0, 1), values.flatten(0, 1))
        if self.training and len(self.queue):
            self._join(points)
        return Assigned(values, loss, use_of(values))

    def _balance(self, similarity: Tensor, earlier: Tensor | None) -> Tensor:
        """Sinkhorn's assignments (N, B, K), of each position by itself or of all together."""
        if not self.together:
            return sinkhorn(similarity, self.temperatures[0], self.iterations, earlier)
        earlier = None if earlier is None else earlier.flatten(0, 1)[None]
        found = sinkhorn(similarity.flatten(0, 1)[None], self.temperatures[0], self.iterations, earlier)
        return found.view(similarity.shape)

    def _join(self, points: Tensor) -> None:
        """The vectors (B, N, Q) of this step, those of all ranks, take the place of the oldest."""
        if world_size() > 1:
            whole = points.new_zeros(world_size(), *points.shape)
            whole[rank()] = points
            points = all_reduce_sum(whole).transpose(0, 1).flatten(0, 1)  # in the order in which images are dealt out
        self.queue.copy_(torch.cat([points, self.queue])[: len(self.queue)])

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The nearest prototype (B, N) of each patch."""
        return (self.points(images) @ F.normalize(self.prototypes, dim=1).T).argmax(2)

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        """Mean cross-entropy of scores (B, m, K), cosines, with ids (B, m) or assignments (B, m, K)."""
        scores = prediction.float() / self.temperatures[1]
        return F.cross_entropy(scores.flatten(0, 1), values.flatten(0, 1))

    @torch.no_grad()
    def follow(self, encoder: nn.Module, step: int, steps: int) -> None:
        """The teacher after step 1 … of so many: momentum · teacher + (1 − momentum) · encoder."""
        keep = self.momentum
        if not self.constant_momentum:
            keep = 1 - (1 - keep) * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        teacher = self.teacher.backbone
        torch._foreach_lerp_(list(teacher.parameters()), list(encoder.parameters()), 1 - keep)
        for mine, theirs in zip(teacher.buffers(), encoder.buffers(), strict=True):
            mine.copy_(theirs)
