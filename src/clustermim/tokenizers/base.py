"""What a tokenizer is: images in, one id a patch out; in memory and on disk (safetensors and JSON, never pickle)."""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from clustermim.errors import ConfigError, TokenizerError
from clustermim.factories import check_names
from clustermim.files import wrap_os_errors, write_atomic
from clustermim.patches import check_channels, grid_size
from clustermim.reading import Whole, check_shape, fits, read_bytes, read_json
from clustermim.teachers.base import device_of, hash_weights
from clustermim.weights import read_header, shapes_only

R = TypeVar("R")

FORMAT = 1
DESCRIPTION = "tokenizer.json"
TENSORS = "tokenizer.safetensors"
MOST_TOKENS = 2**20  # of a saved tokenizer: everything that counts tokens has a place for each
MOST_SIDE = 2**14  # pixels of its patches
MOST_CHANNELS = 2**12
MOST_NUMBER, MOST_SEED = 2**31, 2**63  # of its other settings

SIZES = {
    "vocab_size": range(1, MOST_TOKENS + 1),
    "patch_size": range(1, MOST_SIDE),
    "channels": range(1, MOST_CHANNELS),
}
SHAPE = Whole({"kind": str, "config": {str: object}, "tensors_sha256": str, "fitted": Whole(SIZES | {str: object})})
SHAPE[str] = object  # keys of later versions

ROUNDING = 1e-4  # by which images may leave [0, 1]

NAMED = ("kind", "k", "patch_size", "space", "source", "partition", "spec")  # settings that a repr shows


class Tokenizer(torch.nn.Module, ABC):
    """Images (B, C, H, W), float32 in [0, 1], to ids (B, N), row-major over the patch grid, without gradient.

    The same image gets the same ids in any batch. `__init__` only stores; what `fit` learns ends in an underscore:
    tensors are buffers, all else are JSON values. Both are saved and restored by their names.

    Attributes:
        kind: the name under which the tokenizer is saved and found again.
        needs_labels: True for an oracle that is called with `tokenizer(images, labels)`.
        vocab_size: ids lie in 0 … vocab_size − 1.
        patch_size: side of a square patch in pixels.
        channels_: channels of the images it was fitted on.
        shows_means: True when the pictures of its centres are only the mean pixels of their patches.
    """

    kind: str
    needs_labels: bool = False
    vocab_size: int
    patch_size: int
    channels_: int
    shows_means: bool = False

    @abstractmethod
    def fit(self, source: object) -> Self:
        """Learn from images: a source, or whatever `clustermim.open` takes."""

    @abstractmethod
    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Ids (B, N) of checked images (B, C, H, W)."""

    def config(self) -> dict[str, Any]:
        """The arguments of `__init__`, as JSON values."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def fitted(self) -> dict[str, Any]:
        """Fitted attributes that are not tensors, as JSON values."""
        own = {name[:-1]: value for name, value in vars(self).items() if name.endswith("_")}
        return {"vocab_size": self.vocab_size, "patch_size": self.patch_size, **own}

    def tensors(self) -> dict[str, Tensor]:
        """Fitted tensors by name, to be saved."""
        return {name.removesuffix("_"): tensor for name, tensor in self.state_dict().items()}

    def check_saved(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """ValueError where `restore` could not take these: tensors of the meta device, which have shapes only."""

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """Take back what `fitted` and `tensors` gave; ValueError where they cannot be right."""
        for name, value in fitted.items():
            setattr(self, name if name in ("vocab_size", "patch_size") else f"{name}_", value)
        for name, tensor in tensors.items():
            self.register_buffer(f"{name}_", tensor)
        return self

    def results(self) -> dict[str, Any]:
        """What a summary says of the fit."""
        return {"vocab_size": self.vocab_size}

    def save(self, folder: str | Path) -> None:
        """Write the fitted tokenizer into a folder, made where it is not there; the same one gives the same bytes."""
        self.check_fitted()
        blob = save({name: tensor.cpu().contiguous() for name, tensor in self.tensors().items()})
        record: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "config": self.config(),
            "fitted": self.fitted(),
            "tensors_sha256": hashlib.sha256(blob).hexdigest(),
        }
        record["sha256"] = checksum(record)
        folder = Path(folder)
        with wrap_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / TENSORS, blob)
            write_atomic(folder / DESCRIPTION, (json.dumps(record, indent=2) + "\n").encode())

    def version(self) -> str:
        """A hash of what its ids depend on: its weights, or of one that has none what it was made with."""
        return hash_weights(self) if self.state_dict() else checksum(self.config())[:16]

    def center_patches(self) -> Tensor | None:
        """The token each id stands for as a picture in [0, 1], (vocab_size, C, p, p); None if it has none."""
        return None

    def center_vectors(self) -> Tensor | None:
        """The token each id stands for in the tokenizer's own space, (vocab_size, D); None if it has none."""
        pictures = self.center_patches()
        return None if pictures is None else pictures.flatten(1)

    def distances(self, images: Tensor, ids: Tensor) -> Tensor | None:
        """How far patches of images (B, C, H, W) are from their tokens (B, N), in its own space; None if unknown."""
        return None

    def check_fitted(self) -> None:
        """Refuse to work before `fit`."""
        if not hasattr(self, "channels_"):
            raise TokenizerError(f"this {self.kind} tokenizer is not fitted: call fit(source) or load one")

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Ids (B, N) of images (B, C, H, W); labels (B,) only for an oracle."""
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            given = f"{images.dtype} of {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise TokenizerError(f"a tokenizer takes float images of shape (B, C, H, W), not {given}")
        self.check_fitted()
        check_channels(images, self.channels_, "the tokenizer was fitted on", TokenizerError)
        grid_size(images.shape[2], images.shape[3], self.patch_size)
        if images.numel():
            check_range(images)
        with exactly(images.device.type):
            ids = self.ids(images, labels)
        if ids.device.type == "cpu" and ids.numel():  # a GPU would have to wait for the answer
            low, high = (int(value) for value in ids.aminmax())
            if low < 0 or high >= self.vocab_size:
                raise TokenizerError(f"{self!r} gives ids in {low} … {high}: it is damaged; fit or copy it anew")
        return ids

    def for_normalized(self, mean: Sequence[float], std: Sequence[float]) -> Callable[..., Tensor]:
        """The tokenizer as a function of images that were normalised, (x − mean) / std by channel, in any precision.

        It moves the tokenizer to the device of its images, and makes it no part of a module that keeps the function.
        """
        if not len(mean) == len(std) == getattr(self, "channels_", len(mean)):
            raise TokenizerError(f"{self!r} takes {self.channels_} channels: give as many means and deviations")

        def tokenize_normalized(images: Tensor, labels: Tensor | None = None) -> Tensor:
            if isinstance(images, Tensor) and images.is_floating_point():  # others are refused below
                if device_of(self) not in (None, images.device):
                    self.to(images.device)
                scale, shift = (torch.tensor(v, device=images.device)[:, None, None] for v in (std, mean))
                found = images * scale + shift
                inside, slack = found.clamp(0, 1), torch.finfo(images.dtype).eps * (images * scale).abs()
                images = torch.where((found - inside).abs() <= slack, inside, found)  # what its precision rounded
            ids: Tensor = self(images, labels)
            return ids

        return tokenize_normalized

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in NAMED if name in self.config()}
        images = getattr(self, "images_", None)
        state = "fitted" if hasattr(self, "channels_") else "not fitted"
        shown = [*(f"{name}={value!r}" for name, value in values.items()), state]
        return f"{type(self).__name__}({', '.join(shown)}{f' on {images:,} images' if images else ''})"


def exactly(device: str) -> AbstractContextManager[Any]:
    """Autocast is off inside, so that the ids of an image are the same in a training of mixed precision."""
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def check_range(images: Tensor) -> None:
    """Refuse images that are not in [0, 1]."""
    low, high = (float(value) for value in images.aminmax())
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return
    if not (abs(low) < float("inf") and abs(high) < float("inf")):
        raise TokenizerError("the images hold NaN or infinite values")
    found = f"a tokenizer takes images in [0, 1], and these have values in [{low:.3g}, {high:.3g}]"
    if low < -ROUNDING:
        remedy = "use tokenizer.for_normalized(mean, std), with the mean and std that they were normalised by"
        raise TokenizerError(f"{found}: they look normalised; {remedy}")
    raise TokenizerError(f"{found}: divide bytes by 255; for normalised images use tokenizer.for_normalized(mean, std)")


def check_sizes(**options: tuple[float, float]) -> None:
    """Refuse an option, given with its least value, that is smaller."""
    for name, (value, least) in options.items():
        if value < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value} is too small: {least} at least")


def checksum(record: dict[str, Any]) -> str:
    """The sha256 of JSON values."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def load_saved(folder: str | Path, kinds: dict[str, type[Tokenizer]]) -> Tokenizer:
    """Read a tokenizer of one of these kinds; anything missing, truncated or edited is refused."""
    folder = Path(folder)
    if not folder.is_dir():
        raise TokenizerError(f"there is no tokenizer folder {folder}: make one with `clustermim fit`")
    record = _read_description(folder / DESCRIPTION)
    check_names(record, folder / DESCRIPTION, TokenizerError)  # checksums tell damage, not who wrote it
    if record["kind"] not in kinds:
        raise TokenizerError(
            f"{folder / DESCRIPTION} is of unknown kind {record['kind']!r} (known: {', '.join(kinds)}): fit it anew"
        )
    try:
        kind = kinds[record["kind"]]
        config = check_settings(kind, record)
        with shapes_only():  # nothing is made before it is known to fit
            draft = kind(**config)
            for name in ("vocab_size", "patch_size"):
                if getattr(draft, name, record["fitted"][name]) != record["fitted"][name]:
                    raise ValueError(f"its {name} is not that of its settings")
            draft.check_saved(record["fitted"], _read(folder / TENSORS, read_header))
        blob = _read(folder / TENSORS, read_bytes)
        if hashlib.sha256(blob).hexdigest() != record["tensors_sha256"]:
            raise TokenizerError(f"{folder / TENSORS} was changed after it was saved: fit or copy it anew")
        tensors = load(blob)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ValueError(f"its {name} hold NaN or infinite numbers")
        return kind(**config).restore(record["fitted"], tensors)
    except (TypeError, KeyError, ValueError, RuntimeError, AttributeError, SafetensorError) as error:
        reason = f"that this version cannot read: {' '.join(str(error).split())}"
        raise TokenizerError(f"{folder} holds a {record['kind']} tokenizer {reason}") from error


def check_settings(kind: type[Tokenizer], record: dict[str, Any]) -> dict[str, Any]:
    """The settings of a kind of tokenizer, each as its annotation says; ValueError where one, or a fitted one, is not.

    A setting that is gone only said how to fit.
    """
    known = {name: p.annotation for name, p in inspect.signature(kind, eval_str=True).parameters.items()}
    config = {name: value for name, value in record["config"].items() if name in known}
    learned = _annotations(kind)
    fitted = {name: record["fitted"][name] for name in learned if name in record["fitted"]}
    for values, kinds in ((config, known), (fitted, learned)):
        for name, value in values.items():
            most = MOST_SEED if name == "seed" else MOST_NUMBER
            if not fits(value, kinds[name]) or (type(value) is int and abs(value) >= most):
                raise ValueError(f"its {name} is {value!r:.60}")
    return config


def _annotations(kind: type[Tokenizer]) -> dict[str, Any]:
    """What `fit` learns besides tensors and modules, with its types, by the names that files have."""
    found: dict[str, Any] = {}
    for owner in kind.__mro__[: kind.__mro__.index(Tokenizer)]:
        found |= inspect.get_annotations(owner, eval_str=True)
    learned = {name[:-1]: own for name, own in found.items() if name.endswith("_")}
    return {
        n: own
        for n, own in learned.items()
        if not (isinstance(own, type) and issubclass(own, Tensor | torch.nn.Module))
    }


def outside_teacher(folder: Path) -> str | None:
    """The text by which a saved tokenizer names a teacher elsewhere; None of one that has all it needs with it."""
    record = _read_description(folder / DESCRIPTION)
    config, fitted = record.get("config"), record.get("fitted")
    teacher = config.get("teacher") if isinstance(config, dict) else None
    carried = isinstance(fitted, dict) and "encoder" in fitted
    return None if carried or teacher is None or str(teacher).startswith(("hog:", "pixels:", "random:")) else teacher


def _read_description(path: Path) -> dict[str, Any]:
    record = _read(path, read_json)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise TokenizerError(f"{path} is not a tokenizer of format {FORMAT}, the one this version reads")
    if record.pop("sha256", None) != checksum(record):
        raise TokenizerError(f"{path} was changed after it was saved: fit or copy the tokenizer anew")
    check_shape(record, SHAPE, str(path), TokenizerError)
    return record


def _read(path: Path, reader: Callable[[Path], R]) -> R:
    try:
        return reader(path)
    except OSError as error:
        raise TokenizerError(f"{path.parent} holds no complete tokenizer: {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise TokenizerError(f"{path} is truncated or was changed ({error}): fit or copy the tokenizer anew") from error
