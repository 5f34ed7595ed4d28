"""Fine-tuning: an encoder and a linear head trained on labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from clustermim.data import to_float
from clustermim.data.transforms import normalize
from clustermim.errors import ConfigError, DataError
from clustermim.evaluation.features import pool
from clustermim.evaluation.labels import EvaluationResult, LabelledTask, Pooling, TrainTest, draw_seed, open_pair
from clustermim.evaluation.mixing import GROUP, MixConfig, RandAugment
from clustermim.models.backbones import build_backbone
from clustermim.models.encoder import Encoder, load_encoder, write_weights
from clustermim.models.vit import TokenViT
from clustermim.options import flat
from clustermim.training import Out, RunOptions, Schedule, TrainResult
from clustermim.training.optimizer import adamw, layer_groups

BETAS = (0.9, 0.999)  # a longer memory than in pretraining, as BEiT and MAE fine-tune
LAYER_DECAY = 0.75  # MAE's for a ViT-B; lower layers know more that is worth keeping
HEAD_STD = 2e-5  # as MAE's: a random head does not pull the encoder away from what it knows
FINETUNING = Schedule(epochs=20, base_lr=1e-3)


@dataclass(frozen=True)
class FinetuneOptions:
    """What is trained, and how fast in each layer.

    Args:
        from_scratch: start from new weights of the same architecture: the baseline.
        pooling: what the head sees: the mean of the patch tokens, or the class token.
        layer_decay: each layer learns at this share of the rate of the next; by default 0.75, or 1 from scratch and for
            networks without a row of blocks.
        drop_path: stochastic depth of the last block.
    """

    from_scratch: bool = False
    pooling: Pooling = "avg"
    layer_decay: float | None = None
    drop_path: float = 0.0


@dataclass(frozen=True, repr=False)
class FinetuneResult(EvaluationResult):
    """Accuracy of one pooling, and the classifier: images in [0, 1] to scores of classes."""

    classifier: Classifier = field(kw_only=True)

    @property
    def encoder(self) -> Encoder:
        """The fine-tuned encoder; its `history` has the metrics of the training."""
        return self.classifier.encoder

    @property
    def accuracy(self) -> float:
        """On the test images, after the last epoch."""
        return self.by_pooling()[self.classifier.pooling].accuracy

    def to_dict(self) -> dict[str, Any]:
        """As a summary holds it, without the name of the pooling before it."""
        return self.by_pooling()[self.classifier.pooling].to_dict()


@flat
def finetune(
    encoder: Any,
    train: Any,
    test: Any,
    *,
    finetuning: FinetuneOptions = FinetuneOptions(),
    mix: MixConfig = MixConfig(),
    schedule: Schedule = FINETUNING,
    out: Out = None,
    run_options: RunOptions = RunOptions(),
) -> FinetuneResult:
    """Train an encoder with a linear head on labelled images, and measure both on others. The given one is not changed.

    >>> import clustermim as cm
    >>> encoder = cm.pretrain("digits/train", patch_size=4, epochs=1)
    >>> 0 <= cm.finetune(encoder, "digits/train", "digits/test", epochs=1).accuracy <= 1
    True

    Args:
        encoder: an encoder or its folder.
        train: labelled images to train on; of another size than in pretraining, positions are interpolated.
        test: labelled images to measure on, after every epoch; the last epoch counts.
        out: a run folder to write.
    """
    pretrained = load_encoder(encoder)
    if finetuning.pooling == "cls" and not pretrained.has_class_token:
        raise ConfigError(f"--pooling cls needs a class token, and {pretrained.model} has none: use avg")
    layered = pretrained.backbone.depth > 0
    if finetuning.layer_decay not in (None, 1.0) and not layered:
        raise ConfigError(f"--layer-decay is for ViTs: {pretrained.model} has no row of blocks")
    if finetuning.layer_decay is None:  # new weights have nothing to keep
        finetuning = replace(finetuning, layer_decay=1.0 if finetuning.from_scratch or not layered else LAYER_DECAY)
    task = FinetuneTask(pretrained, open_pair(train, test), finetuning, mix, schedule)
    result: FinetuneResult = task.run(encoder, out, run_options)
    return result


def build_encoder(pretrained: Encoder, shape: tuple[int, int, int], drop_path: float, from_scratch: bool) -> Encoder:
    """An encoder like the pretrained one for images of a shape (C, H, W), with its weights or with new ones.

    On another grid of patches its positions are interpolated.
    """
    channels, height, width = shape
    if isinstance(pretrained.backbone, TokenViT):
        raise ConfigError(f"{pretrained.model} reads tokens, which have no gradient to images: probe it instead")
    if channels != pretrained.channels:
        what = f"the images have {channels} channels and the encoder was made for {pretrained.channels}"
        raise DataError(f"{what}: add ?channels={pretrained.channels} to the data, or pretrain on such images")
    old, sizes = pretrained.backbone, ((height, width), pretrained.patch_size, channels)
    backbone = build_backbone(
        pretrained.model, *sizes, positions=old.position_kind, drop_path=drop_path, registers=old.registers
    )
    if not from_scratch:
        backbone.load_resized(old)
    return Encoder(backbone, pretrained.model, pretrained.mean, pretrained.std)


class Classifier(nn.Module):
    """An encoder with a linear head: images (B, C, H, W) in [0, 1] to scores of classes (B, K)."""

    def __init__(self, encoder: Encoder, class_names: Sequence[str], pooling: Pooling = "avg") -> None:
        super().__init__()
        self.encoder, self.pooling, self.class_names = encoder, pooling, tuple(class_names)
        self.head = nn.Linear(encoder.width, len(class_names))
        nn.init.trunc_normal_(self.head.weight, std=HEAD_STD)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor, *, normalized: bool = False) -> Tensor:
        """Scores (B, K), also of images that have the encoder's mean and deviation already."""
        tokens = self.encoder.backbone(images) if normalized else self.encoder(images)
        scores: Tensor = self.head(pool(tokens, self.pooling))  # (B, K)
        return scores

    def save(self, folder: str | Path) -> None:
        """Write the classifier with timm's names, and its encoder alone for whatever takes one."""
        encoder, named = self.encoder, {"pooling": self.pooling, "class_names": list(self.class_names)}
        encoder.save(folder)
        head = {f"head.{key}": value for key, value in self.head.state_dict().items()}
        write_weights(
            Path(folder) / "model.safetensors", {**encoder.backbone.state_dict(), **head}, encoder.describe() | named
        )


class FinetuneTask(LabelledTask):
    """A classifier that learns from random views with soft targets."""

    name = "finetune"
    group = GROUP
    model: Classifier

    def __init__(
        self, pretrained: Encoder, data: TrainTest, options: FinetuneOptions, mix: MixConfig, schedule: Schedule
    ) -> None:
        super().__init__(pretrained, data, {"finetuning": options, "mix": mix, "schedule": schedule})
        self.options, self.mix, self.augment, self.poolings = options, mix, mix.augment, [options.pooling]
        encoder = build_encoder(pretrained, data.train.shape, options.drop_path, options.from_scratch)
        self.model = Classifier(encoder, data.train.class_names, options.pooling)
        ops, magnitude = mix.randaugment_ops, mix.randaugment_magnitude
        self.policy = RandAugment(ops, magnitude, encoder.channels) if ops else None

    def optimizer(self, lr: float, weight_decay: float) -> Optimizer:
        decay = self.options.layer_decay
        if decay is None or not 0 < decay <= 1:
            raise ConfigError(f"--layer-decay {decay} is not above 0 and at most 1")
        return adamw(layer_groups(self.model, decay, weight_decay), lr, BETAS)

    def step(self, model: nn.Module, batch: tuple[Tensor, Tensor, list[int]]) -> dict[str, Tensor]:
        groups = zip(torch.split(batch[0], GROUP), torch.split(batch[1], GROUP), batch[2], strict=True)
        images, targets = map(torch.cat, zip(*(self.mixed(*group) for group in groups), strict=True))
        return {"loss": F.cross_entropy(model(images, normalized=True), targets)}

    def mixed(self, images: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """A group of images (B, C, H, W), whole numbers, as a step is to see them; and targets (B, K)."""
        images, generator, encoder = to_float(images), Generator().manual_seed(seed), self.model.encoder
        images = images if self.policy is None else self.policy(images, draw_seed(generator))
        return self.mix(normalize(images, encoder.mean, encoder.std), labels, len(self.source.class_names), generator)

    def predict(self, images: Tensor) -> dict[str, Tensor]:
        with self.fabric.autocast():
            return {self.options.pooling: self.model(images)}

    def after_epoch(self, epoch: int) -> dict[str, float]:
        return {"test_accuracy": self.measure()[self.options.pooling].accuracy}

    def result(self, done: TrainResult, folder: Path | None) -> FinetuneResult:
        start, title = ("from scratch",) * 2 if self.options.from_scratch else ("finetune", "fine-tuned")
        size = sum(p.numel() for p in self.model.parameters())
        trained = {"protocol": start, "pooling": self.options.pooling, **done.summary(), "parameters": size}
        self.model.encoder.history = done.history
        if folder:
            self.model.save(folder)
        return FinetuneResult(title, **self.measure(**trained, **self.counts), classifier=self.model)
