"""`run:FOLDER`, an encoder pretrained here, and `random:SIZE`, one that has learned nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clustermim.data.transforms import normalize
from clustermim.errors import ConfigError, RunError, TeacherError
from clustermim.files import user_path
from clustermim.models.backbones import build_backbone
from clustermim.models.encoder import Encoder, build_described, load_encoder
from clustermim.teachers.base import Teacher, resize, to_map
from clustermim.teachers.spec import TeacherSpec
from clustermim.weights import check_like


class EncoderTeacher(Teacher):
    """The patch tokens of an encoder of this project: after its last norm, or as block `layer` gives them.

    Layers count from 1; layer 0 is what the first block receives, the patch embeddings with their positions.
    """

    def __init__(self, spec: str, encoder: Encoder, layer: int | None = None) -> None:
        super().__init__()
        self.spec, self.dim, self.channels = spec, encoder.width, encoder.channels
        self.encoder, self.layer = encoder, layer
        self.requires_grad_(False).eval()

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        encoder, backbone = self.encoder, self.encoder.backbone
        x = normalize(resize(images, encoder.image_size), encoder.mean, encoder.std)
        tokens = backbone(x) if self.layer is None else backbone.tokens_of_layer(x, self.layer)  # (B, 1+N, D)
        return to_map(tokens[:, 1:], encoder.grid)

    def record(self) -> dict[str, Any]:
        """What `from_record` needs besides the weights, as JSON values."""
        return {**self.encoder.describe(), "layer": self.layer}

    @classmethod
    def from_record(cls, spec: str, record: Mapping[str, Any], weights: Mapping[str, Tensor]) -> EncoderTeacher:
        """The teacher that `record` and the state dict of its backbone describe."""
        backbone = build_described(record)
        check_like(weights, backbone.state_dict())
        backbone.load_state_dict(weights)
        if record["layer"] not in (None, *range(backbone.depth + 1)):
            raise ValueError(f"the encoder has no layer {record['layer']!r:.60}")
        return cls(spec, Encoder(backbone, record["model"], record["mean"], record["std"]), record["layer"])


def open_run_teacher(spec: TeacherSpec) -> EncoderTeacher:
    """The encoder of a run folder."""
    try:
        encoder = load_encoder(user_path(spec.place))
    except RunError as error:
        raise TeacherError(f"{spec.text}: {error}") from error
    return EncoderTeacher(spec.text, encoder, spec.find_layer(encoder.backbone.depth))


def open_random(spec: TeacherSpec) -> EncoderTeacher:
    """An untrained encoder: the first teacher of dBOT, and what every other teacher should be better than."""
    channels = spec.integer("channels", 3)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.integer("seed", 0, minimum=0))
            vit = build_backbone(spec.place, spec.pair("image", (32, 32)), spec.integer("patch", 4), channels)
    except ConfigError as error:
        raise TeacherError(f"{spec.text}: {error}") from error
    # Pixels of about zero mean and unit variance, as pretraining would give them.
    encoder = Encoder(vit, spec.place, [0.5] * channels, [0.25] * channels)
    return EncoderTeacher(spec.text, encoder, spec.find_layer(vit.depth))
