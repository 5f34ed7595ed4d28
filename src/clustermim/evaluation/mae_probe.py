"""The linear probe as MAE does it: heads trained by gradient descent on random views, over a frozen encoder.

Each head is a batch norm without weights and a linear layer. All poolings are trained at once: one pass of the
encoder serves them all, and as they share no weight, each head learns as if it were alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from clustermim.data.augment import Augment, augmented
from clustermim.distributed import process_group, world_size
from clustermim.errors import ConfigError, DataError
from clustermim.evaluation.classifier import pool
from clustermim.evaluation.features import POOLINGS, Pooling
from clustermim.evaluation.labelled import TrainTest, measure, open_labelled
from clustermim.models.storage import Encoder, load_encoder
from clustermim.runs import NOT_CONFIGURATION, SUMMARY, check_not_inside, open_resumable_run
from clustermim.training import (
    LARS,
    Device,
    Precision,
    SeededBatches,
    Tracker,
    check_trackers,
    make_schedule,
    open_fabric,
    train,
)

Descent = Literal["lars", "sgd"]
Poolings = Literal["avg", "cls", "both"]

MAE_PEAK, MAE_STEPS = 6.4, 7000  # MAE's probe: 90 epochs of ImageNet in batches of 16,384
BIAS_PEAK = MAE_PEAK  # on biases LARS takes plain steps, which for two even classes overshoot above 2·1.9 / ½ = 7.6
SGD_BASE_LR = 0.3  # for 256 images


class Heads(nn.Module):
    """Features (B, D) of each pooling to scores of classes (B, K)."""

    def __init__(self, poolings: Sequence[Pooling], width: int, classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({pooling: make_head(width, classes) for pooling in poolings})

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {pooling: head(features[pooling]) for pooling, head in self.heads.items()}


class Frozen(NamedTuple):
    """An encoder that only looks: images (B, C, H, W) in [0, 1] to features (B, D) by pooling."""

    encoder: Encoder
    poolings: Sequence[Pooling]
    fabric: Fabric

    @torch.no_grad()
    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        with self.fabric.autocast():
            tokens = self.encoder(images).float()  # (B, 1+N, D)
        return {pooling: pool(tokens, pooling) for pooling in self.poolings}


def mae_probe(
    run: str,
    data: str,
    test_data: str,
    out: str | None,
    pooling: Poolings,
    epochs: int,
    batch_size: int,
    optimizer: Descent,
    base_lr: float | None,
    warmup_epochs: float | None,
    augment: Augment,
    device: Device,
    precision: Precision,
    seed: int,
    track: list[Tracker] | None,
    stop_after: int | None,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """What heads reach on test, by pooling, after their training; the options are those of `clustermim probe`."""
    config = {key: value for key, value in locals().items() if key not in NOT_CONFIGURATION}
    place = Path(run) / "probe-mae" if out is None else Path(out)
    check_not_inside(run, place, "the encoder to start from")
    with process_group():
        torch.manual_seed(seed)  # the initial weights; the loop seeds what comes after
        encoder, labelled = load_encoder(run), open_labelled(data, test_data)
        check_shape(encoder, labelled)
        if base_lr is None:
            base_lr = default_lr(optimizer, epochs, batch_size, len(labelled.train))
        poolings = [name for name in POOLINGS if pooling in (name, "both")]
        heads = Heads(poolings, encoder.vit.width, labelled.classes)
        settings = make_schedule(
            labelled.train, epochs, batch_size, base_lr, 0.0, warmup_epochs, None, 1, seed, stop_after
        )
        fabric = open_fabric(device, precision)
        encoder.vit.to(fabric.device)
        frozen, size = Frozen(encoder, poolings, fabric), batch_size // world_size()
        if size < 2:
            raise ConfigError(
                f"--batch-size {batch_size} is too small: batch norm needs 2 images at least on each rank"
            )
        batches = SeededBatches(
            labelled.train, size, seed, lambda batch, draws: (augmented(batch.images, augment, draws), batch.labels)
        )

        check_trackers(track or ())
        # in the place of its own choosing a complete run is replaced, as the other protocol does
        overwrite = overwrite or (out is None and not resume and (place / SUMMARY).exists())
        # with the weights, because heads of one encoder do not go on with another
        config |= {"protocol": "mae", "base_lr": base_lr, "weights": encoder.weights}
        with open_resumable_run(place, "probe", config, resume=resume, overwrite=overwrite) as folder:
            done = train(
                lambda wrapped, views: step(wrapped, views, frozen),
                batches,
                heads,
                make_optimizer(optimizer, heads, settings.lr),
                settings,
                folder,
                fabric,
                trackers=track or (),
                inputs={"data": labelled.train.fingerprint},
            )
            common = {
                "optimizer": optimizer,
                "base_lr": base_lr,
                "epochs": epochs,
                "training_seconds": round(done.seconds, 1),
                "train_images": len(labelled.train),
                "classes": labelled.classes,
            }
            heads.eval()
            found = measure(lambda images: heads(frozen(images)), poolings, labelled, size, fabric.device)
            results: dict[str, Any] = {name: {"protocol": "mae", **found[name], **common} for name in poolings}
            folder.summary = {"results": results, **labelled.describe(), "weights": encoder.weights}
        labelled.warn_skipped()
        return results


def make_head(width: int, classes: int) -> nn.Sequential:
    """A batch norm without weights, so that one learning rate fits features of any scale, and a linear layer."""
    linear = nn.Linear(width, classes)
    nn.init.trunc_normal_(linear.weight, std=0.01)  # as MAE's
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.BatchNorm1d(width, eps=1e-6, affine=False), linear)


def default_lr(optimizer: Descent, epochs: int, batch_size: int, images: int) -> float:
    """A learning rate for 256 images; with LARS, the one whose peak is 6.4·√(7000 / steps).

    A step of LARS is a share of the weights' norm, whatever the batch: a peak that moves them far enough in few steps
    makes those of separable classes explode in many. The rule is ours; it goes through MAE's own peak and steps.
    """
    if optimizer == "sgd":
        return SGD_BASE_LR
    steps = max(1, epochs * (images // max(1, batch_size)))
    return MAE_PEAK * math.sqrt(MAE_STEPS / steps) * 256 / max(1, batch_size)


def make_optimizer(name: Descent, heads: Heads, lr: float) -> Optimizer:
    """LARS or SGD with momentum, without weight decay."""
    if name == "sgd":
        return SGD(heads.parameters(), lr, momentum=0.9)
    matrices = [parameter for parameter in heads.parameters() if parameter.ndim > 1]
    biases = [parameter for parameter in heads.parameters() if parameter.ndim == 1]
    return LARS([{"params": matrices}, {"params": biases, "lr_scale": min(1.0, BIAS_PEAK / lr)}], lr)


def step(model: nn.Module, views: tuple[Tensor, Tensor], frozen: Frozen) -> dict[str, Tensor]:
    """The sum of the heads' cross-entropies, and each of them."""
    images, labels = views
    losses = {f"loss_{name}": F.cross_entropy(scores, labels) for name, scores in model(frozen(images)).items()}
    return {"loss": torch.stack(list(losses.values())).sum(), **losses}


def check_shape(encoder: Encoder, data: TrainTest) -> None:
    """Refuse images that the encoder cannot take."""
    wanted = (encoder.vit.channels, *encoder.vit.image_size)
    if data.train.shape != wanted:
        given, made = ("×".join(map(str, shape)) for shape in (data.train.shape, wanted))
        raise DataError(
            f"the images of {data.train.spec} are {given} and the encoder was made for {made}: "
            f"add ?size={wanted[1]}x{wanted[2]} to the data"
        )
