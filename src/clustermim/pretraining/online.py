"""Masked image modelling with clusters that learn: the student predicts what the teacher says of masked patches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from clustermim.data import to_float
from clustermim.data.transforms import normalize
from clustermim.distributed import rank, world_size
from clustermim.errors import ConfigError
from clustermim.models.masking import Mask
from clustermim.models.mim import CosineHead, Layout, MaskedAutoencoder, MaskedEncoder, MaskedModel
from clustermim.pretraining.masked_batch import MaskedBatch
from clustermim.pretraining.task import MaskedModeling, token_accuracy
from clustermim.progress import log_info
from clustermim.runs import Run
from clustermim.targets.online import Assigned, OnlineTarget
from clustermim.targets.sinkhorn import collapse
from clustermim.training import Settings, Share, Task, TrainResult
from clustermim.training.checkpoint import check_fit, read_weights

if TYPE_CHECKING:
    from lightning_fabric import Fabric

TEACHER = "teacher"  # the folder of its encoder, inside that of the run


class OnlineModel(nn.Module):
    """All that a step changes: the student, an encoder in its layout, and the target with its teacher."""

    def __init__(self, net: MaskedModel, target: OnlineTarget) -> None:
        super().__init__()
        self.net, self.target = net, target

    def forward(self, images: Tensor, inputs: Tensor, mask: Mask) -> tuple[Tensor, Assigned]:
        """Images in [0, 1] and normalised (B, C, H, W): cosines (B, m, K) of the student, and what the teacher says."""
        assigned = self.target.assign(images)
        return self.net(inputs, mask), assigned


class OnlineModeling(MaskedModeling):
    """A masked model that learns to predict the clusters of a teacher, which follows its encoder."""

    model: OnlineModel
    target: OnlineTarget

    def __init__(self, *task: Any) -> None:
        super().__init__(*task)
        self.model = OnlineModel(cast(MaskedModel, self.model), self.target)
        if self.uniformity or self.cache_tokens:
            name = "uniformity" if self.uniformity else "cache-tokens"
            raise ConfigError(f"--{name} is not for --target online")
        self.warned = False

    @property
    def net(self) -> MaskedModel:
        return self.model.net

    def setup(self, settings: Settings, fabric: Fabric) -> None:
        super().setup(settings, fabric)
        self.blocks, self.steps, self.seed = None, settings.total_steps, settings.seed
        images = settings.images_per_batch * world_size() + len(self.target.queue)
        self.patches = images * len(self.target.means)
        if self.target.dim > self.patches:
            raise ConfigError(
                f"--prototypes {self.target.dim} are more than the {self.patches} patches that are assigned at a time: "
                "lower it, or raise --batch-size or --queue-images"
            )

    def start(self) -> None:
        super().start()
        self.target.start(self.source, self.seed)

    def step(self, model: nn.Module, batch: MaskedBatch) -> dict[str, Tensor]:
        images = to_float(batch.images)
        prediction, assigned = model(images, normalize(images, self.stats.mean, self.stats.std), batch.mask)
        values = assigned.masked(batch.mask)  # (B, m, K)
        self.measures = assigned.measures
        return {
            "loss": self.target.loss(prediction, values) + assigned.loss,
            "clustering_loss": assigned.loss,
            "accuracy": token_accuracy(prediction.detach(), values.argmax(2)),
            **assigned.measures,
        }

    def split(self, batch: MaskedBatch, parts: int) -> list[Share]:
        return Task.split(self, batch, parts)  # whole: all images are assigned together

    def after_step(self, model: nn.Module, step: int) -> None:
        self.target.follow(self.net.encoder, step, self.steps)

    def after_epoch(self, epoch: int) -> dict[str, float]:
        used, confidence = (float(self.measures[name]) for name in ("used", "confidence"))
        problem = None if self.warned else collapse(used, confidence, self.target.dim, self.patches)
        if problem:
            log_info(f"warning: {problem}")
            self.warned = True
        return super().after_epoch(epoch)

    def save(self, run: Run, result: TrainResult) -> None:
        super().save(run, result)
        if rank() == 0:
            self.target.teacher.save(run.folder / TEACHER)


def check_layout(layout: Layout) -> None:
    """Refuse layouts in which an image does not stand for itself, or is not seen as pixels."""
    if layout not in ("mae", "beit"):
        raise ConfigError(f"--target online is for --layout mae and beit, not {layout}")


def with_cosines(net: MaskedModel) -> MaskedModel:
    """The same model, whose head gives cosines with learned directions."""
    if isinstance(net, MaskedEncoder):
        net.head = CosineHead(net.head.weight)
    else:
        assert isinstance(net, MaskedAutoencoder)  # as check_layout says
        net.decoder_pred = CosineHead(net.decoder_pred.weight)
    return net


def start_from(path: str | Path, net: MaskedModel) -> None:
    """Take the weights of a run for a new schedule; the head, which predicted something else, starts anew.

    Of a run that had clusters of its own they are those of the student.
    """
    file, found = read_weights(path)
    head = {name: value for name, value in net.state_dict().items() if name.startswith(("head.", "decoder_pred."))}
    found = {name.removeprefix("net."): value for name, value in found.items() if not name.startswith("target.")}
    found = {name: value for name, value in found.items() if not name.startswith(("head.", "decoder_pred."))}
    check_fit(file, {**found, **head}, net)
    with torch.no_grad():
        net.load_state_dict({**found, **head})
