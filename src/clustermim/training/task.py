"""What is trained. `fit` trains any task by any schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from clustermim.data import Batch, Source
from clustermim.data.augment import Augment
from clustermim.data.randomness import ImageRandom
from clustermim.training.optimizer import adamw, parameter_groups
from clustermim.training.parts import Share
from clustermim.training.state import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CONTENT = "content of the data"  # every byte of its files, where the fingerprint has a sample only


class Task(ABC):
    """A model, the images it learns from, and the loss of a batch.

    Attributes:
        name: of the stage, for a run folder.
        model: what is trained, with the weights that it starts from.
        source: the images.
        base_lr: learning rate for 256 images, where the schedule names none.
        augment: what is done to the images before `view` sees them.
        group: images that are drawn for together, and so stay together on one rank.
        blocks: the modules that FSDP shares out one by one; none where a task does not go with it.
    """

    name: str = "fit"
    model: nn.Module
    source: Source
    base_lr: float = 1.5e-3
    augment: Augment = "none"
    group: int = 1
    blocks: type[nn.Module] | None = None

    @abstractmethod
    def view(self, batch: Batch, random: ImageRandom) -> Any:
        """What one step is given, made in a background thread; all that is random about it comes from `random`."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """{"loss": mean over the batch, …}: scalars to log. `model` is the task's, as wrapped for its devices."""

    def split(self, batch: Any, parts: int) -> list[Share]:
        """The batch in about so many parts that threads may compute at once, each with its share of the mean loss.

        Only where an image's loss depends on no other image, and a step draws no random numbers.
        """
        return [(1.0, batch)]

    def optimizer(self, lr: float, weight_decay: float) -> Optimizer:
        """AdamW as MAE pretrains."""
        return adamw(parameter_groups(self.model, weight_decay), lr)

    def setup(self, settings: Settings, fabric: Fabric) -> None:  # noqa: B027 - optional
        """Move what is not the model to `fabric.device`, and refuse what does not fit; nothing is written before."""

    def start(self) -> None:  # noqa: B027 - optional
        """Compute what the steps need, once. The run folder is there."""

    def after_step(self, model: nn.Module, step: int) -> None:  # noqa: B027 - optional
        """Change the model, unwrapped, after optimizer step 1, 2, …; no number may be read from its device."""

    def after_epoch(self, epoch: int) -> Mapping[str, float]:
        """Values to log after so many epochs; it may leave the model in evaluation mode."""
        return {}

    def save_epoch(self, folder: Path) -> None:
        """Keep what was learned so far, for `--save-every`."""
        raise NotImplementedError

    @property
    def inputs(self) -> dict[str, str]:
        """Hashes of what is learned from: a checkpoint goes on with these and no others."""
        return {"data": self.source.fingerprint, CONTENT: self.source.contents()}
