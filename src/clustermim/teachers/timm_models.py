"""`timm:NAME`: a model of the timm library, or `timm:local-dir:FOLDER`."""

from __future__ import annotations

import inspect
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

    def __init__(self, spec: TeacherSpec, model: Any) -> None:
        super().__init__()
        settings = model.pretrained_cfg
        self.channels, height, width = settings["input_size"]
        self.spec, self.model, self.size = spec.text, model, spec.pair("size", (height, width))
        self.mean, self.std = tuple(settings["mean"]), tuple(settings["std"])
        self.prefix = int(getattr(model, "num_prefix_tokens", 0))
        self.has_position = getattr(model, "pos_embed", None) is not None
        self.layer = spec.find_layer(len(model.blocks), first=1) if spec.layer is not None else None
        self.freeze()
        with torch.no_grad():
            self.dim = self.features(torch.zeros(1, self.channels, *self.size)).shape[1]

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
    kind, _, path = spec.place.partition(":")
    folder, local = user_path(path), kind == "local-dir"
    if local and not (folder / "model.safetensors").is_file():
        raise TeacherError(f"{spec.text}: there is no model.safetensors in {folder}, and other weights are never read")
    # timm leaves weights that it does not find in a folder as they were: random.
    models = [_create(spec, timm, f"local-dir:{folder}" if local else spec.place, seed) for seed in range(1 + local)]
    if hash_weights(models[0]) != hash_weights(models[-1]):
        raise TeacherError(
            f"{spec.text}: the weights in {folder} do not belong to its config.json: some layers would stay random"
        )
    if spec.layer is not None and not hasattr(models[0], "blocks"):
        spec.refuse("layer", "left out: this model has no list of blocks")
    return TimmTeacher(spec, models[0])


def _create(spec: TeacherSpec, timm: Any, place: str, seed: int) -> Any:
    """timm's model of that name, without a head; weights that it makes up are those of the seed."""
    options = {"img_size": spec.pair("size", (0, 0))} if "size" in spec.options else {}
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                return timm.create_model(place, pretrained=True, num_classes=0, **options)
            except TypeError:  # a convolutional network takes any size and no such argument
                return timm.create_model(place, pretrained=True, num_classes=0)
    except Exception as error:  # of several libraries: no such model, no network, files that are not a model's
        raise TeacherError(
            f"{spec.text} cannot be loaded ({format_error(error)}): check the name and the network, or bring "
            "config.json and model.safetensors into a folder and use timm:local-dir:FOLDER"
        ) from error
