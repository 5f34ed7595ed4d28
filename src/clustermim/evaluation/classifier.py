"""An encoder with a linear head: what fine-tuning trains, and what it leaves on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from clustermim.errors import ConfigError, DataError
from clustermim.evaluation.features import Pooling
from clustermim.models.backbones import Backbone, build_backbone
from clustermim.models.storage import Encoder, describe, save_encoder, write_weights

MODEL = "model.safetensors"
# As MAE's: the first steps then train the head, and a random one does not pull the encoder away from what it knows.
HEAD_STD = 2e-5


class Classifier(nn.Module):
    """Normalised images (B, C, H, W) to scores of classes (B, K)."""

    def __init__(self, encoder: Backbone, classes: int, pooling: Pooling) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.head = nn.Linear(encoder.width, classes)
        nn.init.trunc_normal_(self.head.weight, std=HEAD_STD)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(pool(self.encoder(images), self.pooling))  # (B, K)
        return scores


def pool(tokens: Tensor, pooling: Pooling) -> Tensor:
    """Tokens (B, 1+N, D), the class token first, to features (B, D): the mean of the others, or the class token."""
    return tokens[:, 1:].mean(dim=1) if pooling == "avg" else tokens[:, 0]


def build_encoder(pretrained: Encoder, shape: tuple[int, int, int], drop_path: float, from_scratch: bool) -> Backbone:
    """A backbone like the pretrained one for images of a shape (C, H, W), with its weights or with new ones.

    On another grid of patches its positions are interpolated.
    """
    old = pretrained.backbone
    if shape[0] != old.channels:
        raise DataError(
            f"the images have {shape[0]} channels and the encoder was made for {old.channels}: "
            f"add ?channels={old.channels} to the data, or pretrain on such images"
        )
    new = build_backbone(
        pretrained.model,
        shape[1:],
        old.patch_size,
        old.channels,
        positions=old.position_kind,
        drop_path=drop_path,
    )
    if not from_scratch:
        new.load_resized(old)
    return new


def save_classifier(
    folder: Path, net: Classifier, name: str, mean: Sequence[float], std: Sequence[float], class_names: Sequence[str]
) -> None:
    """Write the classifier with timm's names, and its encoder alone for whatever takes one."""
    save_encoder(folder, net.encoder, name, mean, std)
    head = {f"head.{key}": value for key, value in net.head.state_dict().items()}
    description = {**describe(net.encoder, name, mean, std), "pooling": net.pooling, "class_names": list(class_names)}
    write_weights(folder / MODEL, {**net.encoder.state_dict(), **head}, description)


def check_layer_decay(decay: float) -> float:
    """The decay, if it is one."""
    if not 0 < decay <= 1:
        raise ConfigError(f"--layer-decay {decay} is not above 0 and at most 1")
    return decay
