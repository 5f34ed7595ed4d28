"""`hf:NAME` or `hf:FOLDER`: a vision model of the transformers library."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clustermim.errors import MissingExtraError, TeacherError, format_error
from clustermim.files import user_path
from clustermim.hub import fetch_model, has_files
from clustermim.progress import log_info
from clustermim.reading import open_regular, read_json
from clustermim.teachers.base import Teacher, resize, to_map
from clustermim.teachers.spec import TeacherSpec

FILES = ("config.json", "preprocessor_config.json", "model.safetensors")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation, those of DINO, DINOv2, MAE and DeiT


class HubTeacher(Teacher):
    """Patch tokens of a model of transformers: its `last_hidden_state`, or `hidden_states[layer]`.

    Class, distillation and register tokens before the patches are dropped. A convolutional model gives its feature map.
    """

    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)

    def __init__(
        self, spec: TeacherSpec, model: Any, size: tuple[int, int] | None, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.spec, self.model = spec.text, model
        self.channels = int(getattr(model.config, "num_channels", 3))
        own = _pair(getattr(model.config, "image_size", None)) or (224, 224)
        self.size = spec.pair("size", size or own)
        patch = _pair(getattr(model.config, "patch_size", None)) or (1, 1)
        self.grid = (self.size[0] // patch[0], self.size[1] // patch[1])
        if min(self.grid) < 1:
            raise TeacherError(f"{spec.text}: images of {self.size} pixels are smaller than its patches, {patch}")
        # buffers, so that they belong to the fingerprint
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))
        accepted = inspect.signature(model.forward).parameters
        self.takes_noise = "noise" in accepted
        self.interpolates = self.size != own and "interpolate_pos_encoding" in accepted
        self.layer: int | None = None
        self.requires_grad_(False).eval()
        with torch.no_grad():
            self.dim = self._try(spec)

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        found = self._run(images, self.layer is not None)
        hidden: Tensor = found.last_hidden_state if self.layer is None else found.hidden_states[self.layer]
        if hidden.ndim == 4:
            return hidden  # (B, D, h, w)
        prefix = hidden.shape[1] - self.grid[0] * self.grid[1]
        if prefix < 0:
            raise TeacherError(
                f"the teacher {self.spec} gives {hidden.shape[1]} tokens for a grid of {self.grid[0]}×{self.grid[1]} "
                "patches: choose a model that keeps one token a patch, such as a ViT"
            )
        return to_map(hidden[:, prefix:], self.grid)

    def _run(self, images: Tensor, all_layers: bool) -> Any:
        x = (resize(images, self.size) - self.mean) / self.std
        options: dict[str, Any] = {"interpolate_pos_encoding": True} if self.interpolates else {}
        if self.takes_noise:  # MAE shuffles patches by noise; rising noise keeps them in order
            options["noise"] = torch.arange(self.grid[0] * self.grid[1], device=x.device).expand(len(x), -1)
        return self.model(pixel_values=x, output_hidden_states=all_layers, **options)

    def _try(self, spec: TeacherSpec) -> int:
        """The width of its features, found on one image; the layer is checked against those it has."""
        blank = torch.zeros(1, self.channels, *self.size)
        try:
            found = self._run(blank, spec.layer is not None)
        except Exception as error:  # whatever a model raises that is no model of images, or not of this size
            reason = format_error(error)
            raise TeacherError(f"{spec.text}: it cannot be run on images of {self.size} ({reason})") from error
        if getattr(found, "last_hidden_state", None) is None:
            raise TeacherError(f"{spec.text}: {type(self.model).__name__} gives no hidden states of patches")
        self.has_position = found.last_hidden_state.ndim == 3  # a map is that of a convolutional network
        if spec.layer is not None:
            self.layer = spec.find_layer(len(found.hidden_states) - 1)
        return self.features(blank).shape[1]


def open_hf_teacher(spec: TeacherSpec) -> HubTeacher:
    """The model of a folder, or of a name on the hub."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(spec.text, "hf") from error
    folder = user_path(spec.place)
    if not folder.is_dir():
        bring = f"bring {', '.join(FILES)} into a folder and use hf:FOLDER"
        # Other programs may have fetched the model alone, without its normalisation.
        needed = ("config.json", "model*.safetensors*")  # and an index, where there are several
        folder = fetch_model(spec.text, spec.place, needed, ("preprocessor_config.json",), TeacherError, bring)
    if not has_files(folder, ("config.json", "model*.safetensors")):
        pickled = any(folder.glob("*.bin"))
        why = "only pickled weights, which are never read" if pickled else "no model of transformers"
        raise TeacherError(f"{spec.text}: there is {why} in {folder}: bring {', '.join(FILES)} there")
    _check_files(spec, folder)
    model = _load(spec, folder, transformers)
    return HubTeacher(spec, model, *_preprocessing(spec, folder, int(getattr(model.config, "num_channels", 3))))


def _check_files(spec: TeacherSpec, folder: Path) -> None:
    """Refuse what the library would follow to other files than the folder's safetensors: an adapter, or an index."""
    index, named = folder / "model.safetensors.index.json", []
    if (folder / "adapter_config.json").exists():
        raise TeacherError(f"{spec.text}: {folder} holds an adapter, which is not read: merge it into its model")
    try:
        for path in (*folder.glob("*.json"), *folder.glob("*.safetensors")):  # a pipe would be waited for
            open_regular(path).close()
        named = [str(file) for file in read_json(index)["weight_map"].values()] if index.exists() else []
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TeacherError(f"{spec.text}: {index} cannot be used ({format_error(error)}): copy it anew") from error
    for file in named:
        if not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise TeacherError(f"{spec.text}: {index} names {file!r}: only safetensors beside it are read")


def _load(spec: TeacherSpec, folder: Path, transformers: Any) -> Any:
    """The model of a folder, or the image tower of one that has several."""
    try:
        safe = {"trust_remote_code": False, "local_files_only": True}
        config = transformers.AutoConfig.from_pretrained(folder, **safe)
        config._attn_implementation = None  # a file may name a kernel there, which is code of the hub
        if hasattr(config, "mask_ratio"):
            config.mask_ratio = 0.0  # MAE shall see every patch
        load = transformers.AutoModel.from_pretrained
        model, report = load(folder, config=config, use_safetensors=True, output_loading_info=True, **safe)
    except Exception as error:  # of several libraries, on files that are damaged or of a kind that they do not know
        raise TeacherError(f"{spec.text}: the model in {folder} cannot be read ({format_error(error)})") from error
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing or report["mismatched_keys"]:
        what = f"{missing[0]} is missing" if missing else "they have other shapes"
        raise TeacherError(f"{spec.text}: the weights in {folder} do not belong to its config.json: {what}")
    model = getattr(model, "vision_model", model).float()
    if len(missing) < len(report["missing_keys"]):
        model.pooler = None  # not used here, and random where the file has none
    return model


def _preprocessing(
    spec: TeacherSpec, folder: Path, channels: int
) -> tuple[tuple[int, int] | None, list[float], list[float]]:
    """Size, mean and deviation of the images that a model was made with, as its file has it.

    The size is that of the crop, or else of the resized image; nothing is cropped here, so that the grid fits.
    """
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        log_info(f"note: {folder} has no {path.name}: images get the model's size, and ImageNet's mean and deviation")
    default = IMAGENET if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
    try:
        settings = read_json(path) if path.is_file() else {}
        crops = settings.get("crop_size") and settings.get("do_center_crop", True)
        size = settings.get("crop_size" if crops else "size")
        if isinstance(size, Mapping):
            size = size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])
        mean, std = settings.get("image_mean") or default[0], settings.get("image_std") or default[1]
        if not settings.get("do_normalize", True):
            mean, std = [0.0] * channels, [1.0] * channels
        return _pair(size), [float(x) for x in mean], [float(x) for x in std]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TeacherError(f"{spec.text}: {path} cannot be used ({format_error(error)}): copy it anew") from error


def _pair(size: Any) -> tuple[int, int] | None:
    """Height and width, from both or from one side."""
    sides = size if isinstance(size, list | tuple) else (size, size)
    return None if size is None else (int(sides[0]), int(sides[1]))
