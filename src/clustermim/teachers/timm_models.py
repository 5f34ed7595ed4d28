"""`timm:NAME`: a model of the timm library, or `timm:local-dir:FOLDER`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from clustermim.data.transforms import normalize
from clustermim.errors import MissingExtraError, TeacherError
from clustermim.files import user_path
from clustermim.teachers.contract import Teacher, resize, to_map
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
        self.bears_position = getattr(model, "pos_embed", None) is not None
        self.layer = spec.find_layer(len(model.blocks), first=1) if spec.layer is not None else None
        self.freeze()
        with torch.no_grad():
            self.dim = self.features(torch.zeros(1, self.channels, *size)).shape[1]

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        x = normalize(resize(images, self.size), self.mean, self.std)
        if self.layer is not None:
            found: Tensor = self.model.forward_intermediates(
                x, intermediates_only=True, output_fmt="NCHW", **self._indices(self.layer)
            )[0]
            return found  # (B, D, h, w)
        found = self.model.forward_features(x)
        if found.ndim == 4:
            nhwc = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
            return found.permute(0, 3, 1, 2) if nhwc else found  # (B, D, h, w)
        tokens = found[:, self.prefix :]  # (B, N, D)
        return to_map(tokens, self._grid(tokens.shape[1]))

    def _indices(self, layer: int) -> dict[str, Any]:
        """Which intermediate a block is: a convolutional network counts its stem and all blocks."""
        if "extra_blocks" in inspect.signature(self.model.forward_intermediates).parameters:
            return {"indices": [layer], "extra_blocks": True}
        return {"indices": [layer - 1]}

    def _grid(self, count: int) -> tuple[int, int]:
        """The grid of the model's own patches."""
        rows, columns = getattr(getattr(self.model, "patch_embed", None), "grid_size", (0, 0))
        if rows * columns != count:
            raise TeacherError(f"{self.spec}: its {count} tokens do not lie on a grid: choose a ViT or another model")
        return int(rows), int(columns)


def open_timm(spec: TeacherSpec) -> TimmTeacher:
    """A pretrained model, its input size being its own or the option `size`."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision built for another torch
        raise MissingExtraError(spec.text, "timm") from error
    kind, _, folder = spec.place.partition(":")
    if kind == "local-dir" and not (user_path(folder) / "model.safetensors").is_file():
        raise TeacherError(f"{spec.text}: there is no model.safetensors in {folder}, and other weights are never read")
    size = spec.pair("size", (0, 0))
    try:
        options = {"img_size": size} if "size" in spec.options else {}
        try:
            model = timm.create_model(spec.place, pretrained=True, num_classes=0, **options)
        except TypeError:  # a convolutional network takes any size and no such argument
            model = timm.create_model(spec.place, pretrained=True, num_classes=0)
    except Exception as error:  # of several libraries: no such model, no network, files that are not a model's
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise TeacherError(
            f"{spec.text} cannot be loaded ({reason}): check the name and the network, or bring config.json and "
            "model.safetensors into a folder and use timm:local-dir:FOLDER"
        ) from error
    if spec.layer is not None and not hasattr(model, "blocks"):
        spec.refuse("layer", "left out: this model has no list of blocks")
    own = tuple(model.pretrained_cfg["input_size"][1:])
    return TimmTeacher(spec, model, size if "size" in spec.options else (own[0], own[1]))
