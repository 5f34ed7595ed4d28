"""What an encoder is worth while it is trained: neighbours and a quick probe of frozen features, RankMe and LiDAR.

1,024 images and 3 views of 128 of them are encoded each time: 2.5 % of the operations of an epoch of CIFAR-10 with
MAE's layout, where an image of a step costs 1.1 times an image here. Nothing is drawn from the global generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.data.augment import random_view
from clustermim.errors import ConfigError, DataError
from clustermim.evaluation.features import pool, poolings_of
from clustermim.evaluation.frozen import fit_logistic, predict, principal_axes, vote
from clustermim.evaluation.labels import POOLINGS, check_any
from clustermim.models import Encoder
from clustermim.progress import log_info
from clustermim.scores.collect import drawn
from clustermim.scores.ranks import lidar, principal, rankme

IMAGES, VIEWED, VIEWS = 1024, 128, 3  # images, and random views of so many of them
BATCH = 256
NEIGHBOURS, TEMPERATURE = 20, 0.07  # as `knn` has them
L2 = 1e-2  # of the quick probe, which chooses none: half a thousand images are few


def make_watch(source: Any, every: int | None) -> Watch | None:
    """What `--watch` and `--watch-every` ask for."""
    if source is None and every is not None:
        raise ConfigError("--watch-every says how often to look at the images of --watch: name them too")
    return None if source is None else Watch(source, every)


class Watch:
    """Measures an encoder on a few images of a source, every so many epochs."""

    def __init__(self, source: Any, every: int | None = None) -> None:
        self.source: Source = open_source(source)
        self.every = 1 if every is None else every
        if self.every < 1:
            raise ConfigError(f"--watch-every {every} is too small: 1 epoch at least")
        check_any(self.source, len(self.source))
        if self.source.labels is None:
            log_info(f"{self.source.spec} has no labels: --watch gives RankMe and LiDAR only")

    def start(self) -> None:
        """Read the images, once; those that cannot be read are left out."""
        batch = self.source.read(drawn(self.source, IMAGES))
        check_any(self.source, len(batch.images))
        self.images, self.labels = batch.images, batch.labels

    @torch.no_grad()
    def __call__(self, encoder: Encoder) -> dict[str, float]:
        """Values to log: of the mean of the patch tokens, then of the class token."""
        generator = torch.Generator().manual_seed(0)  # the same views every time
        views = torch.cat([random_view(self.images[:VIEWED], generator) for _ in range(VIEWS)])  # view after view
        shown, viewed = _features(encoder, self.images), _features(encoder, views)  # (2, n, D) each
        found: dict[str, float] = {}
        for place, pooling in enumerate(poolings_of(encoder)):
            values = self._measure(shown[place], viewed[place].reshape(VIEWS, -1, viewed.shape[2]).transpose(0, 1))
            end = "" if pooling == "avg" else f"_{pooling}"
            found |= {f"watch_{name}{end}": value for name, value in values.items()}
        return found

    def _measure(self, features: Tensor, views: Tensor) -> dict[str, float]:
        """Features (n, D) of the images, and (m, VIEWS, D) of the views of some."""
        found: dict[str, Callable[[], float]] = {}
        if self.labels is not None:
            classes, labels = torch.unique(self.labels, return_inverse=True)
            found["knn"] = lambda: _accuracy(_neighbours, features, labels, len(classes))
            found["probe"] = lambda: _accuracy(_probe, features, labels, len(classes))
        found["rankme"] = lambda: rankme(principal(features.double().numpy()))
        found["lidar"] = lambda: lidar(views.double().numpy())
        finite = bool(torch.isfinite(features).all() and torch.isfinite(views).all())
        return {name: _value(measure) if finite else math.nan for name, measure in found.items()}


def _features(encoder: Encoder, images: Tensor) -> Tensor:
    """Both poolings of images (n, C, H, W): (2, n, D), on the CPU."""
    device, found = next(encoder.parameters()).device, []
    for part in torch.split(images, BATCH):
        tokens = encoder(to_float(part.to(device))).float()
        found.append(torch.stack([pool(tokens, pooling) for pooling in POOLINGS]).cpu())
    return torch.cat(found, dim=1)


def _value(measure: Callable[[], float]) -> float:
    """NaN where there is none: of one class, one image, or features that are all the same."""
    try:
        return measure()
    except (DataError, ValueError):
        return math.nan


def _accuracy(classify: Callable[..., Tensor], features: Tensor, labels: Tensor, classes: int) -> float:
    """The share of images whose class a classifier of the other half finds."""
    half = len(labels) // 2
    if classes < 2 or not half:
        raise DataError("one class, or one image")
    here, there = slice(0, half), slice(half, None)
    right = [
        classify(features[a], labels[a], features[b], classes) == labels[b] for a, b in ((here, there), (there, here))
    ]
    return float(torch.cat(right).double().mean())


def _neighbours(values: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    return vote(values, labels, queries, min(NEIGHBOURS, len(values)), TEMPERATURE, classes)


def _probe(values: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    axes = principal_axes(values)
    return predict(fit_logistic(axes.turn(values), labels, classes, L2), axes.turn(queries))
