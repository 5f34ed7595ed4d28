"""`run:FOLDER`, an encoder pretrained here, and `random:SIZE`, one that has learned nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clustermim.data.transforms import normalize
from clustermim.errors import ConfigError, RunError, TeacherError
from clustermim.files import user_path
from clustermim.models.backbones import Backbone, build_backbone
from clustermim.models.encoder import build_described, describe, load_encoder
from clustermim.teachers.base import Teacher, resize, to_map
from clustermim.teachers.spec import TeacherSpec


class EncoderTeacher(Teacher):
    """The patch tokens of an encoder of this project: after its last norm, or as block `layer` gives them.

    Layers count from 1; layer 0 is what the first block receives, the patch embeddings with their positions.
    """

    def __init__(
        self,
        spec: str,
        vit: Backbone,
        model: str,
        mean: Sequence[float],
        std: Sequence[float],
        layer: int | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.dim, self.channels = spec, vit.width, vit.channels
        self.vit, self.model, self.layer = vit, model, layer
        self.mean, self.std = tuple(mean), tuple(std)
        self.freeze()

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        x = normalize(resize(images, self.vit.image_size), self.mean, self.std)
        tokens = self.vit(x) if self.layer is None else self.vit.tokens_of_layer(x, self.layer)  # (B, 1+N, D)
        return to_map(tokens[:, 1:], self.vit.grid)

    def record(self) -> dict[str, Any]:
        """What `from_record` needs besides the weights, as JSON values."""
        return {**describe(self.vit, self.model, self.mean, self.std), "layer": self.layer}

    @classmethod
    def from_record(cls, spec: str, record: Mapping[str, Any], weights: Mapping[str, Tensor]) -> EncoderTeacher:
        """The teacher that `record` and the state dict of its backbone describe."""
        vit = build_described(record)
        try:
            vit.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(" ".join(str(error).split())) from error
        return cls(spec, vit, record["model"], record["mean"], record["std"], record["layer"])


def open_run(spec: TeacherSpec) -> EncoderTeacher:
    """The encoder of a run folder."""
    try:
        encoder = load_encoder(user_path(spec.place))
    except RunError as error:
        raise TeacherError(f"{spec.text}: {error}") from error
    layer = spec.find_layer(encoder.backbone.depth)
    return EncoderTeacher(spec.text, encoder.backbone, encoder.model, encoder.mean, encoder.std, layer)


def open_random(spec: TeacherSpec) -> EncoderTeacher:
    """An untrained encoder: the first teacher of dBOT, and what every other teacher should be better than."""
    channels = spec.integer("channels", 3)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.integer("seed", 0, minimum=0))
            vit = build_backbone(spec.place, spec.pair("image", (32, 32)), spec.integer("patch", 4), channels)
    except ConfigError as error:
        raise TeacherError(f"{spec.text}: {error}") from error
    layer = spec.find_layer(vit.depth)
    # Pixels of about zero mean and unit variance, as pretraining would give them.
    return EncoderTeacher(spec.text, vit, spec.place, [0.5] * channels, [0.25] * channels, layer)
