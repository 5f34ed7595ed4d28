"""Encoders on disk: `encoder.safetensors` with timm's names, and `encoder.json` with what is needed to use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from clustermim.data.transforms import normalize
from clustermim.errors import RunError
from clustermim.files import write_atomic
from clustermim.models.vit import Positions, ViT

WEIGHTS = "encoder.safetensors"
DESCRIPTION = "encoder.json"


@dataclass(frozen=True)
class Encoder:
    """An encoder with the normalisation of its images, a hash of its weights and the name of its size."""

    vit: ViT
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: str
    model: str  # the name of its size

    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] to tokens (B, 1+N, D), the class token first; nothing is masked."""
        tokens: Tensor = self.vit(normalize(images, self.mean, self.std))
        return tokens


def save_encoder(folder: Path, vit: ViT, name: str, mean: Sequence[float], std: Sequence[float]) -> None:
    """Write the weights and the description of an encoder of a named size."""
    write_weights(folder / WEIGHTS, vit.state_dict(), describe(vit, name, mean, std))


def describe(vit: ViT, name: str, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """What is needed to build an encoder of a named size and to use it."""
    positions: Positions = "learned" if vit.pos_embed.requires_grad else "sincos"
    return {
        "model": name,
        "image_size": list(vit.image_size),
        "patch_size": vit.patch_size,
        "channels": vit.channels,
        "positions": positions,
        "mean": list(mean),
        "std": list(std),
    }


def write_weights(path: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write a safetensors file, and beside it a JSON file of the same name with a description and the file's hash."""
    blob = save({key: value.detach().cpu().contiguous() for key, value in weights.items()})
    record = {**description, "weights_sha256": hashlib.sha256(blob).hexdigest()}
    write_atomic(path, blob)
    write_atomic(path.with_suffix(".json"), (json.dumps(record, indent=2) + "\n").encode())


def load_encoder(folder: str | Path) -> Encoder:
    """The encoder of a run folder, ready for evaluation."""
    folder = Path(folder)
    blob, record = _read(folder / WEIGHTS), _parse(folder / DESCRIPTION)
    digest = hashlib.sha256(blob).hexdigest()
    if digest != record.get("weights_sha256"):
        raise RunError(f"{folder / WEIGHTS} is truncated or was changed after it was saved: pretrain or copy it anew")
    try:
        vit = ViT.of_size(
            record["model"],
            (record["image_size"][0], record["image_size"][1]),
            record["patch_size"],
            record["channels"],
            positions=record["positions"],
        )
        vit.load_state_dict(load(blob))
        return Encoder(vit.eval(), tuple(record["mean"]), tuple(record["std"]), digest, record["model"])
    except (KeyError, TypeError, IndexError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{folder} holds an encoder that this version cannot read: {reason}") from error


def _parse(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(_read(path))
    except ValueError as error:
        raise RunError(f"{path} is truncated or not JSON ({error}): pretrain or copy it anew") from error
    if not isinstance(record, dict):
        raise RunError(f"{path} does not describe an encoder")
    return record


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no pretrained encoder: {path.name} is missing") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
