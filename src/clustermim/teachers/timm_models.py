"""`timm:NAME`: a model of the timm library, or `timm:local-dir:FOLDER`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clustermim.data.transforms import normalize
from clustermim.errors import MissingExtraError, TeacherError, format_error
from clustermim.files import user_path
from clustermim.teachers.base import Teacher, hash_weights, resize, to_map
from clustermim.teachers.spec import TeacherSpec


class TimmTeacher(Teacher):
    """Patch tokens, or the feature map, of a timm model: what it gives in the end, or after block `layer` ≥ 1."""

    def __init__(self, spec: TeacherSpec, model: Any, size: tuple[int, int]) -> None:
        super().__init__()
        settings = model.pretrained_cfg
        self.spec, self.model, self.size = spec.text, model, size
        self.channels = int(settings["input_size"][0])
        self.mean, self.std = tuple(settings["mean"]), tuple(settings["std"])
        self.prefix = int(getattr(model, "num_prefix_tokens", 0))
        self.has_position = getattr(model, "pos_embed", None) is not None
        self.layer = spec.find_layer(len(model.blocks), first=1) if spec.layer is not None else None
        self.freeze()
        with torch.no_grad():
            self.dim = self.features(torch.zeros(1, self.channels, *size)).shape[1]

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        x = normalize(resize(images, self.size), self.mean, self.std)
        found: Tensor
        if self.layer is not None:
            intermediates = self.model.forward_intermediates
            which: dict[str, Any] = {"indices": [self.layer - 1]}
            if "extra_blocks" in inspect.signature(intermediates).parameters:  # one that counts its stem and all blocks
                which = {"indices": [self.layer], "extra_blocks": True}
            (found,) = intermediates(x, intermediates_only=True, output_fmt="NCHW", **which)
            return found  # (B, D, h, w)
        found = self.model.forward_features(x)
        if found.ndim == 4:
            nhwc = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
            return found.permute(0, 3, 1, 2) if nhwc else found  # (B, D, h, w)
        tokens = found[:, self.prefix :]  # (B, N, D)
        rows, columns = getattr(getattr(self.model, "patch_embed", None), "grid_size", (0, 0))
        if rows * columns != tokens.shape[1]:
            problem = f"its {tokens.shape[1]} tokens do not lie on a grid"
            raise TeacherError(f"{self.spec}: {problem}: choose a ViT or another model")
        return to_map(tokens, (int(rows), int(columns)))


def open_timm(spec: TeacherSpec) -> TimmTeacher:
    """A pretrained model, its input size being its own or the option `size`."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError(spec.text, "timm") from error
    except RuntimeError as error:
        raise TeacherError(
            f"{spec.text}: timm is installed, but its torchvision was built for another torch and cannot be imported "
            f"({format_error(error)}): install the torchvision of the same build as torch"
        ) from error
    size = spec.pair("size", (0, 0))
    options = {"img_size": size} if "size" in spec.options else {}
    kind, _, folder = spec.place.partition(":")
    if kind == "local-dir":
        model = _from_folder(spec, timm, user_path(folder), options)
    else:
        model = _create(spec, timm, spec.place, options)
    if spec.layer is not None and not hasattr(model, "blocks"):
        spec.refuse("layer", "left out: this model has no list of blocks")
    own = tuple(model.pretrained_cfg["input_size"][1:])
    return TimmTeacher(spec, model, size if "size" in spec.options else (own[0], own[1]))


def _from_folder(spec: TeacherSpec, timm: Any, folder: Path, options: dict[str, Any]) -> Any:
    """A model whose weights all come from its folder: timm leaves those that it does not find there as they were."""
    if not (folder / "model.safetensors").is_file():
        raise TeacherError(f"{spec.text}: there is no model.safetensors in {folder}, and other weights are never read")
    models = []
    for seed in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models.append(_create(spec, timm, f"local-dir:{folder}", options))
    if hash_weights(models[0]) != hash_weights(models[1]):
        raise TeacherError(
            f"{spec.text}: the weights in {folder} do not belong to its config.json: some layers would stay random"
        )
    return models[0]


def _create(spec: TeacherSpec, timm: Any, place: str, options: dict[str, Any]) -> Any:
    """timm's model of that name, without a head."""
    try:
        try:
            return timm.create_model(place, pretrained=True, num_classes=0, **options)
        except TypeError:  # a convolutional network takes any size and no such argument
            return timm.create_model(place, pretrained=True, num_classes=0)
    except Exception as error:  # of several libraries: no such model, no network, files that are not a model's
        raise TeacherError(
            f"{spec.text} cannot be loaded ({format_error(error)}): check the name and the network, or bring "
            "config.json and model.safetensors into a folder and use timm:local-dir:FOLDER"
        ) from error
