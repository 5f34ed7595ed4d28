"""The encoder that pretraining gives: a backbone with the normalisation of its images; in memory and on disk.

On disk: `encoder.safetensors` with timm's names, and `encoder.json` with what is needed to use it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from clustermim.data.transforms import normalize
from clustermim.errors import RunError
from clustermim.files import user_path, write_atomic
from clustermim.hub import fetch_model
from clustermim.models.backbones import MOST_REGISTERS, Backbone, build_backbone
from clustermim.models.names import from_export
from clustermim.reading import Whole, check_shape, fits, read_bytes, read_json
from clustermim.weights import check_like, read_header, shapes_only

if TYPE_CHECKING:
    from clustermim.models.export import Library

WEIGHTS = "encoder.safetensors"
EXPORTED = "model.safetensors"  # the same for another library
DESCRIPTION = "encoder.json"

SHAPE = Whole(
    {"model": str, "image_size": [range(1, 2**16)], "patch_size": range(1, 2**16), "channels": range(1, 2**12)}
)
SHAPE |= {"positions": str, "mean": [float], "std": [float], str: object}


class Encoder(nn.Module):
    """Images (B, C, H, W) in [0, 1] to tokens (B, 1+N, D), the class token first; nothing is masked.

    Args:
        backbone: the network, which takes normalised images.
        model: the text that builds such a network, as `micro`.
        mean, std: of each channel, in units of [0, 1].
        history: the lines of metrics of its training.
    """

    def __init__(
        self,
        backbone: Backbone,
        model: str,
        mean: Sequence[float],
        std: Sequence[float],
        history: Iterable[dict[str, Any]] = (),
    ) -> None:
        super().__init__()
        self.backbone, self.model, self.history = backbone, model, list(history)
        self.mean, self.std = tuple(mean), tuple(std)  # no buffers: a description needs every digit
        self.width, self.patch_size, self.grid = backbone.width, backbone.patch_size, backbone.grid
        self.image_size, self.channels = backbone.image_size, backbone.channels
        self.has_class_token = backbone.has_class_token

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.backbone(normalize(images, self.mean, self.std))
        return tokens

    @property
    def weights(self) -> str:
        """A hash of the weights: that of the file which `save` writes."""
        return hashlib.sha256(to_safetensors(self.backbone.state_dict())).hexdigest()

    def describe(self) -> dict[str, Any]:
        """What is needed to build it again but for its weights, as JSON values."""
        found = {
            "model": self.model,
            "image_size": list(self.image_size),
            "patch_size": self.patch_size,
            "channels": self.channels,
            "positions": self.backbone.position_kind,
            "mean": list(self.mean),
            "std": list(self.std),
        }
        return found | ({"registers": self.backbone.registers} if self.backbone.registers else {})

    def save(self, folder: str | Path) -> None:
        """Write weights and description into a folder, which is made if need be."""
        write_weights(Path(folder) / WEIGHTS, self.backbone.state_dict(), self.describe())

    def export(self, to: Library, folder: str | Path, **options: Any) -> None:
        """Write it as a model of timm or transformers, as `clustermim.export` does, with its options."""
        from clustermim.models.export import export  # which takes encoders

        export(self, to, folder, **options)

    def __repr__(self) -> str:
        size, count = "×".join(map(str, self.image_size)), sum(p.numel() for p in self.parameters())
        images = f"{self.channels}×{size} images, patches of {self.patch_size}"
        return f"Encoder({self.model}: {images}, width {self.width}, {count:,} parameters)"


def build_described(record: Mapping[str, Any], where: str = "its description") -> Backbone:
    """A backbone like the one of a description, with new weights; `where` that was read."""
    check_shape(record, SHAPE, where, RunError)
    height, width = record["image_size"]
    sizes = (height, width), record["patch_size"], record["channels"]
    if not len(record["mean"]) == len(record["std"]) == record["channels"]:
        raise ValueError("it has not one mean and deviation for each channel")
    registers = record.get("registers", 0)
    if not fits(registers, range(MOST_REGISTERS + 1)):
        raise ValueError(f"its registers are {registers!r:.60}")
    return build_backbone(record["model"], *sizes, positions=record["positions"], registers=registers)


def write_weights(path: Path, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write a safetensors file, and beside it a JSON file of the same name with a description and the file's hash."""
    blob = to_safetensors(weights)
    record = {**description, "weights_sha256": hashlib.sha256(blob).hexdigest()}
    write_atomic(path, blob)
    write_atomic(path.with_suffix(".json"), (json.dumps(record, indent=2) + "\n").encode())


def encoder_folder(encoder: str | Path) -> Path:
    """The folder of an encoder, which `hf:OWNER/NAME` brings from the hub: its safetensors and JSON alone."""
    text = str(encoder)
    if not text.startswith("hf:"):
        return Path(encoder)
    folder = user_path(text.removeprefix("hf:"))
    if folder.is_dir():
        return folder
    bring = f"bring {DESCRIPTION} and {EXPORTED}, which clustermim export writes, into a folder and name that"
    return fetch_model(text, text.removeprefix("hf:"), (DESCRIPTION, EXPORTED), (), RunError, bring)


def load_encoder(encoder: str | Path | Encoder) -> Encoder:
    """The encoder of a folder, ready for evaluation; an encoder is returned as it is.

    The folder is that of a run, or of an export; `hf:OWNER/NAME` is an export on the hub.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3).save(folder)
    ...     encoder = load_encoder(folder)
    >>> encoder(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 5, 128])
    """
    if isinstance(encoder, Encoder):
        return encoder
    if not isinstance(encoder, str | Path):
        raise RunError(f"an encoder is an Encoder or the folder of one, not {type(encoder).__name__}")
    folder = encoder_folder(encoder)
    path = folder / WEIGHTS
    if not path.exists() and (folder / EXPORTED).exists():
        path = folder / EXPORTED
    named = from_export if path.name == EXPORTED else dict
    try:
        header, record = _read_header(path), read_json(folder / DESCRIPTION)
        with shapes_only():  # nothing is made before it is known to fit
            check_like(named(header), build_described(record, str(folder / DESCRIPTION)).state_dict())
        blob = read_bytes(path)
        if hashlib.sha256(blob).hexdigest() != record["weights_sha256"]:
            raise RunError(f"{path} was changed: pretrain or copy it anew")
        backbone = build_described(record)
        backbone.load_state_dict(named(load(blob)))
        return Encoder(backbone, record["model"], record["mean"], record["std"]).eval()
    except FileNotFoundError as error:
        raise RunError(f"{folder} holds no pretrained encoder: {Path(error.filename).name} is missing") from None
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{folder / DESCRIPTION} is of an encoder that this version cannot read: {reason}") from error


def _read_header(path: Path) -> dict[str, Tensor]:
    try:
        return read_header(path)
    except ValueError as error:
        raise RunError(f"{path} is truncated or was changed ({error}): pretrain or copy it anew") from error


def to_safetensors(weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file."""
    return save({key: value.detach().cpu().contiguous() for key, value in weights.items()}, metadata)
