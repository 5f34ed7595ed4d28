"""The count tables as torchmetrics classes: states are sums, so they stream and synchronise across ranks."""

from __future__ import annotations

from typing import Any, TypedDict

import torch
from torch import Tensor
from torchmetrics import Metric

from clustermim.count_tables import Floats
from clustermim.errors import ConfigError, DataError
from clustermim.scores.debiased import FOLDS
from clustermim.scores.patch_mi import shared_information
from clustermim.scores.spectral import count_into, half_corrected, pair_counts
from clustermim.scores.tcas import Diag, Empty, Norm, TCASVariant, tcas
from clustermim.scores.tcas_report import TCASReport, assess


class CooccurrenceResult(TypedDict):
    """What `TokenCooccurrence` computes."""

    sum_sq: float  # Σλ² corrected by halves of the images
    plug_in: float  # Σλ² of all images, biased upwards
    Q: Floats  # (l, l), sums to 1
    information: float  # I(S; S') of two patches of an image, in nats, corrected by halves
    entropy: float  # H(S), in nats


class TCAS(Metric):
    """TCAS of all patches seen so far, for a training loop that wants this one number.

    update: tokens (B, N) int64, labels (B,) int64. compute: a scalar tensor. State: (vocab_size, num_classes)
    int64. The options are those of `clustermim.scores.tcas`.

    >>> metric = TCAS(vocab_size=2, num_classes=2)
    >>> metric.update(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0, 1]))
    >>> float(metric.compute())
    0.0
    """

    full_state_update = False
    higher_is_better = False
    is_differentiable = False
    counts: Tensor

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        norm: Norm = "plain",
        diag: Diag = "C",
        tau: float = 1.0,
        empty: Empty = "drop",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_sizes(vocab_size=vocab_size, num_classes=num_classes)
        self.variant = TCASVariant(norm, diag, tau, empty).check()
        zeros = torch.zeros(vocab_size, num_classes, dtype=torch.int64)
        self.add_state("counts", zeros, dist_reduce_fx="sum")

    def update(self, tokens: Tensor, labels: Tensor) -> None:
        """Count a batch: tokens (B, N), labels (B,)."""
        vocab_size, num_classes = self.counts.shape
        _check_batch(tokens, vocab_size)
        _check_ids("labels", labels, (len(tokens),), num_classes)
        count_into(self.counts, tokens * num_classes + labels[:, None])

    def compute(self) -> Tensor:
        """The score, a scalar of torch's default type."""
        return torch.tensor(tcas(self.counts, **self.variant._asdict()), device=self.counts.device)


class TokenClassTable(Metric):
    """Tokens against classes, by group of images and under permuted labels: all that `assess` needs.

    update: tokens (B, N), labels (B,), groups (B,) in 0..G-1, null_labels (P, B) or None, all int64. The
    caller deals images into groups without regard to their class (a hash, or index mod G of a shuffled set),
    and permutes labels between whole images over the whole set. compute: an `Assessment`.

    State: (G + P) · vocab_size · num_classes int32, and a copy that torchmetrics keeps for `reset`. With the
    default groups and permutations one state takes 1.2 MB for 100 tokens and 100 classes, 1 GB for 8192
    tokens and 1000 classes.
    """

    full_state_update = False
    is_differentiable = False
    counts: Tensor
    null_counts: Tensor

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        groups: int = 20,  # five a fold; Student's t makes intervals 7 % wider than normal ones
        permutations: int = 10,
        norm: Norm = "plain",
        diag: Diag = "C",
        tau: float = 1.0,
        empty: Empty = "drop",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_sizes(vocab_size=vocab_size, num_classes=num_classes, groups=groups)
        if groups % FOLDS:
            raise ConfigError(f"groups must be divisible by {FOLDS}, not {groups}")
        if permutations < 0:
            raise ConfigError(f"permutations must not be negative, not {permutations}")
        self.variant = TCASVariant(norm, diag, tau, empty).check()
        for name, tables in (("counts", groups), ("null_counts", permutations)):
            zeros = torch.zeros(tables, vocab_size, num_classes, dtype=torch.int32)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, tokens: Tensor, labels: Tensor, groups: Tensor, null_labels: Tensor | None = None) -> None:
        """Count a batch of images; shapes as above."""
        size, (num_groups, vocab_size, num_classes) = len(tokens), self.counts.shape
        _check_batch(tokens, vocab_size)
        _check_ids("labels", labels, (size,), num_classes)
        _check_ids("groups", groups, (size,), num_groups)
        rows = tokens * num_classes  # (B, N), where each patch's row of a table begins
        table_size = vocab_size * num_classes
        count_into(self.counts, rows + (groups * table_size + labels)[:, None])
        permutations = len(self.null_counts)
        if null_labels is not None and permutations:
            _check_ids("null_labels", null_labels, (permutations, size), num_classes)
            starts = torch.arange(permutations, device=tokens.device)[:, None] * table_size
            count_into(self.null_counts, rows + (starts + null_labels)[:, :, None])  # (P, B, N)

    def compute(self) -> TCASReport:
        """`assess` of what was counted."""
        return assess(self.counts, self.null_counts, **self.variant._asdict())


class TokenCooccurrence(Metric):
    """Σλ² of the mask graph from tokens that share an image (docs/theory.md#the-two-terms-on-data).

    update: tokens (B, N) int64, halves (B,) of 0 and 1, by default the parity of the image's place in this
    rank's stream. compute: a `CooccurrenceResult`.

    State: two (l, l) int64 tables of pairs of patches, 40 KB for 50 tokens and 1.1 GB for 8192; torchmetrics
    keeps a copy for `reset`, and `compute` needs as much again. An update costs one product of histograms for
    small codebooks and one visit to each pair of patches for large ones.
    """

    full_state_update = True  # the default halves depend on how many images came before
    is_differentiable = False
    pairs: Tensor
    images: Tensor
    patches: Tensor

    def __init__(self, vocab_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_sizes(vocab_size=vocab_size)
        zeros = torch.zeros(2, vocab_size, vocab_size, dtype=torch.int64)
        self.add_state("pairs", zeros, dist_reduce_fx="sum")
        self.add_state("images", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("patches", torch.tensor(0), dist_reduce_fx="max")  # of one image

    def update(self, tokens: Tensor, halves: Tensor | None = None) -> None:
        """Count the pairs of patches of a batch; shapes as above."""
        vocab_size = self.pairs.shape[1]
        _check_batch(tokens, vocab_size)
        patches = tokens.shape[1]
        if patches < 2:
            raise DataError("co-occurrence needs at least two patches an image")
        if self.patches not in (0, patches):
            raise DataError(f"images of {int(self.patches)} and of {patches} patches cannot be mixed")
        self.patches.fill_(patches)
        if halves is None:
            halves = (self.images.sum() + torch.arange(len(tokens), device=tokens.device)) % 2
        _check_ids("halves", halves, (len(tokens),), 2)
        for half in range(2):
            pair_counts(tokens[halves == half], vocab_size, into=self.pairs[half])
        self.images += torch.bincount(halves, minlength=2)

    def compute(self) -> CooccurrenceResult:
        """Corrected and plug-in Σλ², and Q; needs an image in each half."""
        if not self.images.all():
            raise DataError("both halves need at least one image")
        corrected, plug_in = half_corrected(self.pairs[0], self.pairs[1])
        pairs = self.pairs.sum(dim=0).cpu().numpy()
        shared, diversity = shared_information(self.pairs[0], self.pairs[1])
        return CooccurrenceResult(
            sum_sq=corrected, plug_in=plug_in, Q=pairs / pairs.sum(), information=shared, entropy=diversity
        )


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name} must be at least 1, not {size}")


def _check_batch(tokens: Tensor, vocab_size: int) -> None:
    if tokens.ndim != 2:
        raise DataError(f"tokens must have shape (images, patches), not {tuple(tokens.shape)}")
    _check_ids("tokens", tokens, tuple(tokens.shape), vocab_size)


def _check_ids(name: str, ids: Tensor, shape: tuple[int, ...], below: int) -> None:
    """Refuse ids of another shape or type, or outside 0..below-1."""
    if tuple(ids.shape) != shape:
        raise DataError(f"{name} must have shape {shape}, not {tuple(ids.shape)}")
    if ids.dtype != torch.int64:
        raise DataError(f"{name} must be int64, not {ids.dtype}")
    if ids.numel() and (ids.min() < 0 or ids.max() >= below):
        raise DataError(f"{name} must lie in 0..{below - 1}, found {int(ids.min())}..{int(ids.max())}")
