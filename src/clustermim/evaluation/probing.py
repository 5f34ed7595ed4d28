"""The linear probe, in two protocols: logistic regression on fixed features, and heads trained as MAE's are.

MAE's protocol trains heads by gradient descent on random views, over a frozen encoder. All poolings are trained at
once: one pass of the encoder serves them all, and as they share no weight, each head learns as if it were alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from clustermim.data import to_float
from clustermim.data.augment import Augment
from clustermim.distributed import all_reduce_sum, world_size
from clustermim.errors import ConfigError
from clustermim.evaluation.features import (
    Encode,
    check_shape,
    measure_features,
    open_encoder,
    pool,
    poolings_of,
    put_back,
)
from clustermim.evaluation.frozen import probe_features
from clustermim.evaluation.labels import EvaluationResult, LabelledTask, Pooling, TrainTest, open_pair
from clustermim.models.encoder import Encoder
from clustermim.options import flat, flattened
from clustermim.training import LARS, Out, RunOptions, Schedule, Settings, TrainResult

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Descent = Literal["lars", "sgd"]

PROBING = Schedule(epochs=90, weight_decay=0.0)  # as MAE probes
MAE_PEAK, MAE_STEPS = 6.4, 7000  # MAE's probe: 90 epochs of ImageNet in batches of 16,384


@dataclass(frozen=True)
class ProbeOptions:
    """How a linear probe is trained.

    Args:
        protocol: lbfgs solves logistic regression on fixed features; mae trains on random views, as MAE's authors do.
            With lbfgs, of all other options only `batch_size`, `device` and `seed` count.
        pooling: what to classify: the mean of the patch tokens, the class token, or each of both.
        optimizer: lars, as MAE, or SGD with momentum.
        augment: random resized crop, shifts by an eighth with mirrored borders, or none; all but none also flip.
        base_lr: learning rate for 256 images (MAE: 0.1); by default 0.3 for sgd, for lars by the steps.
        seed: of the held-out tenth; with mae, of all that is random.
    """

    protocol: Literal["lbfgs", "mae"] = "lbfgs"
    pooling: Literal["avg", "cls", "both"] = "both"
    optimizer: Descent = "lars"
    augment: Augment = "crop"


@flat
def linear_probe(
    encoder: Any,
    train: Any,
    test: Any,
    *,
    probe: ProbeOptions = ProbeOptions(),
    schedule: Schedule = PROBING,
    out: Out = None,
    run_options: RunOptions = RunOptions(),
) -> EvaluationResult:
    """Accuracy on test images of a linear classifier of an encoder's frozen features, for both poolings.

    >>> import clustermim as cm
    >>> encoder = cm.pretrain("digits/train", patch_size=4, epochs=1)
    >>> cm.linear_probe(encoder, "digits/train", "digits/test").avg.accuracy > 0.5
    True

    Args:
        encoder: an encoder, its folder, or a function from images (B, C, H, W) in [0, 1] to tokens (B, 1 + N, D).
        train: labelled images to train the probe on; with lbfgs a tenth of them chooses the strength of its L2 penalty.
        test: labelled images to measure it on.
        out: a run folder to write, with mae.
    """
    if probe.protocol == "lbfgs":
        defaults = inspect.signature(linear_probe).parameters
        for name, value in flattened({"probe": probe, "schedule": schedule, "out": out, "run": run_options}).items():
            if name not in ("protocol", "batch_size", "device", "seed") and value != defaults[name].default:
                raise ConfigError(f"--{name.replace('_', '-')} is for --protocol mae")
        where = schedule.batch_size, schedule.device
        found = measure_features(probe_features, encoder, train, test, *where, seed=schedule.seed)
        return EvaluationResult("linear probe", **found)
    encode, data = open_encoder(encoder), open_pair(train, test)
    check_shape(encode, data.train)
    if schedule.base_lr is None:
        lr = default_lr(probe.optimizer, schedule.epochs, schedule.batch_size, len(data.train))
        schedule = replace(schedule, base_lr=lr)
    with put_back(encode):
        result: EvaluationResult = ProbeTask(encode, data, probe, schedule).run(encoder, out, run_options)
    return result


class BatchNorm(nn.BatchNorm1d):
    """Batch norm without weights, by the images of all ranks; features (B, D), equally many on each, are fixed."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6, affine=False)

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or world_size() == 1:
            return super().forward(features)
        count = len(features) * world_size()
        mean = all_reduce_sum(features.sum(0)) / count
        variance = all_reduce_sum((features - mean).square().sum(0)) / count
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.lerp_(mean, 0.1)
        self.running_var.lerp_(variance * count / (count - 1), 0.1)
        return (features - mean) / (variance + self.eps).sqrt()


class Heads(nn.Module):
    """Features (B, D) of each pooling to scores of classes (B, K): a batch norm without weights, and a linear layer."""

    def __init__(self, poolings: Sequence[Pooling], width: int, classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict()
        for pooling in poolings:
            linear = nn.Linear(width, classes)
            nn.init.trunc_normal_(linear.weight, std=0.01)  # as MAE's
            nn.init.zeros_(linear.bias)
            # after the norm, one learning rate fits features of any scale
            self.heads[pooling] = nn.Sequential(BatchNorm(width), linear)

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {pooling: head(features[pooling]) for pooling, head in self.heads.items()}


class ProbeTask(LabelledTask):
    """Heads over a frozen encoder, one for each pooling."""

    name = "probe"

    def __init__(self, encode: Encode, data: TrainTest, probe: ProbeOptions, schedule: Schedule) -> None:
        super().__init__(encode, data, {"probe": probe, "schedule": schedule})
        self.encode, self.probe, self.augment = encode, probe, probe.augment
        self.poolings = [name for name in poolings_of(encode) if probe.pooling in (name, "both")]
        if not self.poolings:
            raise ConfigError("--pooling cls needs a class token, and this encoder has none: use avg")
        width = encode.width if isinstance(encode, Encoder) else encode(torch.zeros(1, *data.train.shape)).shape[-1]
        self.model = Heads(self.poolings, width, len(data.train.class_names))

    def setup(self, settings: Settings, fabric: Fabric) -> None:
        super().setup(settings, fabric)
        if self.size < 2:
            batch = settings.images_per_step
            raise ConfigError(f"--batch-size {batch} is too small: batch norm needs 2 images at least on each rank")
        if isinstance(self.encode, nn.Module):
            self.encode.to(fabric.device)

    def optimizer(self, lr: float, weight_decay: float) -> Optimizer:
        return make_optimizer(self.probe.optimizer, self.model, lr, weight_decay)

    def step(self, model: nn.Module, batch: tuple[Tensor, Tensor, int]) -> dict[str, Tensor]:
        return head_losses(model, self.features(to_float(batch[0])), batch[1])

    @torch.no_grad()
    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, C, H, W) in [0, 1] to features (B, D) by pooling."""
        with self.fabric.autocast():
            tokens = self.encode(images).float()  # (B, 1+N, D)
        return {pooling: pool(tokens, pooling) for pooling in self.poolings}

    def predict(self, images: Tensor) -> dict[str, Tensor]:
        scores: dict[str, Tensor] = self.model(self.features(images))
        return scores

    def result(self, done: TrainResult, folder: Path | None) -> EvaluationResult:
        chosen = {name: self.config[name] for name in ("protocol", "optimizer", "base_lr", "epochs")}
        found = self.measure(**chosen, training_seconds=round(done.seconds, 1), **self.counts)
        return EvaluationResult("linear probe", **found)


def head_losses(model: nn.Module, features: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
    """The sum of the heads' cross-entropies, and each of them."""
    losses = {f"loss_{name}": F.cross_entropy(scores, labels) for name, scores in model(features).items()}
    return {"loss": torch.stack(list(losses.values())).sum(), **losses}


def default_lr(optimizer: Descent, epochs: int, batch_size: int, images: int) -> float:
    """A learning rate for 256 images; with LARS, the one whose peak is 6.4·√(7000 / steps).

    A step of LARS is a share of the weights' norm, and a peak for few steps makes weights explode in many. The rule
    is ours; it goes through MAE's own peak and steps.
    """
    if optimizer == "sgd":
        return 0.3
    steps = max(1, epochs * (images // max(1, batch_size)))
    return MAE_PEAK * math.sqrt(MAE_STEPS / steps) * 256 / max(1, batch_size)


def make_optimizer(name: Descent, heads: nn.Module, lr: float, weight_decay: float = 0.0) -> Optimizer:
    """LARS or SGD with momentum."""
    if name == "sgd":
        return SGD(heads.parameters(), lr, momentum=0.9, weight_decay=weight_decay)
    matrices, biases = ([p for p in heads.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    scale = min(1.0, MAE_PEAK / lr)  # plain steps on biases overshoot above 2·1.9 / ½ = 7.6 for two even classes
    return LARS([{"params": matrices}, {"params": biases, "lr_scale": scale}], lr, weight_decay=weight_decay)
