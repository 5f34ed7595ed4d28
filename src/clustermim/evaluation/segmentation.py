"""Dense evaluation: frozen patch features tell the classes of patches and pixels, by a linear classifier and by kNN.

A patch of train has the class of most of its pixels. The linear classifier is that of the linear probe (`frozen.py`),
its l2 chosen on the patches of a held-out tenth of the train images. Neighbours are patches of train, by cosine
similarity. On test images the scores of the classes, (B, K, rows, columns), are made as large as the mask by bilinear
interpolation, and the largest decides at each pixel:

    IoU of a class = pixels where prediction and mask both have it / pixels where one of them has it

over all test images together; `mean_iou` is the mean over the classes that have such pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from clustermim.data import Source, open_source
from clustermim.errors import ConfigError, DataError
from clustermim.evaluation.features import Encode, check_shape, open_encoder, put_back
from clustermim.evaluation.frozen import choose_l2, class_votes, fit_logistic, principal_axes, rows_at_once
from clustermim.evaluation.iou import Tally, interval, mean_iou
from clustermim.evaluation.labels import check_any
from clustermim.evaluation.patches import Patches, draw_patches, majority, patch_features, patch_grid
from clustermim.progress import log_info, track, warn_skipped
from clustermim.results import Result, Table, percent
from clustermim.training import Device, find_device
from clustermim.training.devices import keep_freed_memory

MAX_PATCHES = 50_000  # of train: as many as CIFAR has images, with 768 features 150 MB
_SCORES = 1 << 24  # of pixels held at a time: 64 MB
_PARTS = 10  # one of so many train images is held out
_DETAILS = ("iou", "details")

Score = Callable[[Tensor], Tensor]  # patch features (n, D) to scores of the classes that train has (n, K)
Range = tuple[float, float]


@dataclass(frozen=True)
class Segmentation:
    """How well one classifier of patches does, with 95 % intervals: a bootstrap over test images."""

    mean_iou: float
    mean_iou_interval: Range
    pixel_accuracy: float
    pixel_accuracy_interval: Range
    patch_accuracy: float
    patch_accuracy_interval: Range
    iou: Mapping[str, float]  # by class
    details: Mapping[str, Any]  # protocol, test_images, train_patches, classes, …

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, details among the others."""
        found = {name: value for name, value in asdict(self).items() if name not in _DETAILS}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        return {**plain, "iou": dict(self.iou), **self.details}


@dataclass(frozen=True, repr=False)
class SegmentationResult(Result):
    """Segmentation by a linear classifier of patches and by nearest patches."""

    linear: Segmentation
    knn: Segmentation

    def to_dict(self) -> dict[str, Any]:
        """As a summary holds it, by classifier."""
        return {"linear": self.linear.to_dict(), "knn": self.knn.to_dict()}

    def table(self) -> Table:
        """A row a classifier."""
        rows = []
        for name, found in (("linear", self.linear), ("kNN", self.knn)):
            cells = [percent(found.mean_iou), " … ".join(map(percent, found.mean_iou_interval))]
            more = [percent(found.pixel_accuracy), percent(found.patch_accuracy), f"{found.details['test_images']:,}"]
            rows.append([name, *cells, *more])
        columns = ("classifier", "mean IoU", "95 % interval", "pixel accuracy", "patch accuracy", "test images")
        caption = f"mean over {len(self.linear.iou)} classes; interval: bootstrap over test images"
        return Table("segmentation of frozen patch features", columns, rows, caption)

    def __repr__(self) -> str:
        return f"<segmentation: mean IoU linear {percent(self.linear.mean_iou)}; kNN {percent(self.knn.mean_iou)}>"


class Classifier(NamedTuple):
    """What gives scores to patches, and all that defines it."""

    score: Score
    details: dict[str, Any]


def segment(
    encoder: Any,
    train: Any,
    test: Any,
    *,
    k: int = 20,
    temperature: float = 0.07,
    max_patches: int = MAX_PATCHES,
    batch_size: int = 64,
    seed: int = 0,
    device: Device | None = None,
) -> SegmentationResult:
    """Mean IoU and accuracy of the classes of pixels, told from an encoder's frozen patch features.

    >>> import clustermim as cm
    >>> train, test = (f"textures:{part}?images=40&grid=4&patch=4" for part in ("train", "test"))
    >>> found = cm.segment(cm.pretrain(train, patch_size=4, epochs=0), train, test)
    >>> found.linear.mean_iou > 0.5, found.knn.patch_accuracy > 0.5
    (True, True)

    Args:
        encoder: an encoder, its folder, or a function from images (B, C, H, W) in [0, 1] to tokens (B, 1 + N, D).
        train: images with masks to learn from.
        test: images with masks to measure on.
        k: neighbours that vote.
        temperature: a vote weighs exp(cosine similarity / temperature).
        max_patches: train patches to learn from, drawn at random where there are more; the test images need no more
            memory than one batch of them.
        batch_size: images encoded at a time.
        seed: of the train patches, of the tenth of train that is held out, and of the bootstrap.
        device: where to compute; by default the fastest that is there.
    """
    for name, value in (("batch-size", batch_size), ("max-patches", max_patches)):
        if value < 1:
            raise ConfigError(f"--{name} {value} is too small: 1 at least")
    if not temperature > 0:
        raise ConfigError(f"--temperature {temperature} is not above 0")
    chosen, encode = find_device(device), open_encoder(encoder)
    here, there = open_masked_pair(train, test)
    check_shape(encode, here)
    keep_freed_memory()
    with put_back(encode), torch.no_grad():
        if isinstance(encode, nn.Module):
            encode.to(chosen)
        patches = draw_patches(encode, here, max_patches, batch_size, seed, chosen)
        log_info(f"{len(patches.labels):,} train patches × {patches.values.shape[1]} features")
        present, classifiers = learn(patches, here.spec, k, temperature, seed)
        tallies = measure(encode, there, [one.score for one in classifiers], present, batch_size, chosen)
    counts = {"train_patches": len(patches.labels), "train_images": len(torch.unique(patches.images))}
    counts |= {"max_patches": max_patches, "seed": seed, "classes": len(present)}
    names = here.masks.class_names if here.masks else ()
    found = [
        summarise(tally, names, seed, {**classifier.details, **counts})
        for tally, classifier in zip(tallies, classifiers, strict=True)
    ]
    return SegmentationResult(*found)


def learn(patches: Patches, where: str, k: int, temperature: float, seed: int) -> tuple[Tensor, list[Classifier]]:
    """The classes (K,) that patches of train have, and the linear classifier and the neighbours that tell them."""
    present, labels = torch.unique(patches.labels, return_inverse=True)
    if len(present) < 2:
        raise DataError(f"all patches of {where} are of one class: a classifier needs at least two")
    if not 1 <= k <= len(labels):
        raise ConfigError(f"--k {k} neighbours cannot be had from {len(labels)} train patches")
    linear = fit_linear(patches.values, labels, patches.images, len(present), seed)
    return present, [linear, find_neighbours(patches.values, labels, len(present), k, temperature)]


def open_masked_pair(train: Any, test: Any) -> tuple[Source, Source]:
    """Train and test sources with masks, or an error when one cannot be tested with the other."""
    train, test = open_source(train), open_source(test)
    for source in (train, test):
        if source.masks is None:
            remedy = "name them with folder:IMAGES?masks=FOLDER, or take textures:"
            raise DataError(f"{source.spec} has no masks, and segmentation needs them: {remedy}")
    if train.shape != test.shape:
        here, there = ("×".join(map(str, source.shape)) for source in (train, test))
        raise DataError(f"the images of {train.spec} are {here} and those of {test.spec} {there}: add ?size= to one")
    if train.masks.class_names != test.masks.class_names:
        raise DataError(f"the masks of {train.spec} and {test.spec} have other classes: use data of the same ones")
    return train, test


def fit_linear(values: Tensor, labels: Tensor, images: Tensor, classes: int, seed: int) -> Classifier:
    """Logistic regression of patch features (n, D), whose l2 is chosen on the patches of held-out images."""
    held = held_out_images(images, seed)
    axes = principal_axes(values)
    turned = axes.turn(values)
    tried = choose_l2(turned, labels, classes, seed, held)
    best = max(tried, key=lambda l2: tried[l2][0])  # the first, hence strongest, of equals
    model = fit_logistic(turned, labels, classes, best, start=tried[best][1])
    accuracies = {f"{l2:g}": accuracy for l2, (accuracy, _) in tried.items()}
    details = {"protocol": "lbfgs", "l2": best, "held_out_accuracy": accuracies}
    return Classifier(lambda x: axes.turn(x) @ model[:, :-1].T + model[:, -1], details)


def held_out_images(images: Tensor, seed: int) -> Tensor:
    """A mask (n,) of the patches of a random tenth of the images (n,) they are of: neighbours stay together."""
    present = np.unique(images.cpu().numpy())
    if len(present) < _PARTS:
        what = f"the train patches are of {len(present)} images, too few to hold out a tenth"
        raise DataError(f"{what}: at least {_PARTS} are needed")
    chosen = np.random.default_rng(seed).permutation(present)[: len(present) // _PARTS]
    return torch.isin(images, torch.from_numpy(chosen).to(images.device))


def find_neighbours(values: Tensor, labels: Tensor, classes: int, k: int, temperature: float) -> Classifier:
    """The votes of the nearest of patch features (n, D); similarities are computed in blocks of 16 MB."""
    bank = F.normalize(values, dim=1)

    def score(queries: Tensor) -> Tensor:
        parts = torch.split(F.normalize(queries, dim=1), rows_at_once(bank))
        return torch.cat([class_votes(bank, labels, part, k, temperature, classes) for part in parts])

    return Classifier(score, {"protocol": "knn", "k": k, "temperature": temperature})


def measure(
    encode: Encode, test: Source, scores: list[Score], present: Tensor, batch_size: int, device: torch.device
) -> list[Tally]:
    """What each classifier has right of every test image; `present` (K,) are the classes that it knows."""
    assert test.masks is not None
    tallies, seen = [Tally() for _ in scores], 0
    for batch in track(test.batches(batch_size), "segmentation", total=-(-len(test) // batch_size)):
        values = patch_features(encode, batch.images, device)  # (B, N, D)
        seen += len(values)
        masks = test.masks.read(batch.indices.numpy()).to(values.device).long()  # (B, H, W)
        grid = patch_grid(encode, values.shape[1], test)
        patches = majority(masks, grid)  # (B, N)
        for score, tally in zip(scores, tallies, strict=True):
            found = score(values.flatten(0, 1)).view(*values.shape[:2], -1)  # (B, N, K)
            predicted = present[found.argmax(dim=2)]  # (B, N)
            tally.add_patches(predicted, patches)
            for one, truth in zip(*split_pixels(found, masks), strict=True):
                tally.add_pixels(present[upsample(one, grid, truth.shape[1:])], truth)
    check_any(test, seen)
    warn_skipped(test.skipped)
    return tallies


def split_pixels(scores: Tensor, masks: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Scores (B, N, K) and masks (B, H, W) of so few images at a time that their pixels' scores fit into memory."""
    count = max(1, _SCORES // (masks[0].numel() * scores.shape[2]))
    return torch.split(scores, count), torch.split(masks, count)


def upsample(scores: Tensor, grid: tuple[int, int], size: torch.Size) -> Tensor:
    """The largest of scores (B, N, K), interpolated bilinearly: (B, H, W) numbers below K."""
    maps = scores.transpose(1, 2).reshape(len(scores), -1, *grid)  # (B, K, rows, columns)
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False).argmax(dim=1)


def summarise(tally: Tally, names: tuple[str, ...], seed: int, details: Mapping[str, Any]) -> Segmentation:
    """The numbers of one classifier."""
    counts, pixels, patches = tally.classes(), tally.pixels(), tally.patches()
    if not pixels[:, 1].sum():
        raise DataError("the masks of the test images have no pixel with a class")
    union = counts[..., 1].sum(0) + counts[..., 2].sum(0) - counts[..., 0].sum(0)  # (K,)
    shares = {
        names[number] if number < len(names) else str(number): float(counts[:, number, 0].sum() / union[number])
        for number in np.flatnonzero(union).tolist()
    }
    right = [(float(_share(part.sum(0))), interval(_share, part, seed)) for part in (pixels, patches)]
    found = float(mean_iou(counts.sum(0))), interval(mean_iou, counts, seed)
    return Segmentation(*found, *right[0], *right[1], shares, {"test_images": len(counts), **details})


def _share(counts: NDArray[Any]) -> NDArray[Any]:
    """Right ones over all, of counts (…, 2); NaN of none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(counts[..., 0] / counts[..., 1])
