"""Earlier names, until nobody uses them."""

from collections.abc import Sequence
from pathlib import Path

from clustermim.models.backbones import Backbone
from clustermim.models.encoder import DESCRIPTION, WEIGHTS, Encoder, describe, load_encoder, write_weights

__all__ = ["DESCRIPTION", "WEIGHTS", "Encoder", "describe", "load_encoder", "save_encoder", "write_weights"]


def save_encoder(folder: Path, vit: Backbone, name: str, mean: Sequence[float], std: Sequence[float]) -> None:
    Encoder(vit, name, mean, std).save(folder)
