"""An encoder as a model of another library, which need not be installed: a folder, and on request the hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from clustermim.errors import ConfigError, RunError
from clustermim.exchange import clean, recover
from clustermim.files import locked, write_atomic
from clustermim.hub import check_pushable, push_folder
from clustermim.models.card import make_card
from clustermim.models.encoder import DESCRIPTION, EXPORTED, Encoder, encoder_folder, load_encoder, to_safetensors
from clustermim.models.names import to_dinov2, to_timm, to_transformers
from clustermim.models.timm_backbones import TimmBackbone
from clustermim.models.vit import MLP_RATIO, NORM_EPS, TokenViT, ViT
from clustermim.runs import CONFIG, METRICS, SUMMARY, staged, to_json

Library = Literal["timm", "transformers"]

BICUBIC = 3  # Pillow's number, which transformers stores
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
PROCESSOR, CARD = "preprocessor_config.json", "README.md"
FILES = ("config.json", EXPORTED, DESCRIPTION, PROCESSOR, CARD)
OLDER = (CONFIG, METRICS, SUMMARY)  # what earlier versions wrote too


def export(
    encoder: str | Path | Encoder,
    to: Library,
    folder: str | Path,
    license: str = "other",
    push: str | None = None,
    public: bool = False,
    overwrite: bool = False,
) -> None:
    """Write an encoder as a model of timm or transformers: weights, configuration and model card, without a head.

    `load_encoder` reads the folder too, and `load_encoder("hf:OWNER/NAME")` what was pushed.

    >>> import os, tempfile
    >>> from clustermim.models import build_backbone
    >>> encoder = Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(encoder, "timm", folder + "/vit")
    ...     sorted(os.listdir(folder + "/vit"))
    ['README.md', 'config.json', 'encoder.json', 'model.safetensors']

    Args:
        encoder: an encoder, or the folder of one; the model card tells what the folder says of its run.
        to: the library that shall load it: `timm.create_model("local-dir:FOLDER", pretrained=True)` or
            `transformers.AutoModel.from_pretrained(FOLDER)`.
        folder: where to write.
        license: of the weights, for the model card, such as cc-by-4.0.
        push: also upload the folder to the hub, as OWNER/NAME. Nothing is uploaded without this.
        public: let everybody see a repository that pushing makes; one that is there stays as it is.
        overwrite: replace an older export in the folder.
    """
    if to not in get_args(Library):
        raise ConfigError(f"an encoder is exported to {' or '.join(get_args(Library))}, not to {to!r}")
    if not LICENSE.fullmatch(license):
        raise ConfigError(f"--license {license} is not the short name of a licence, such as cc-by-4.0, mit or other")
    if push is not None:
        check_pushable(push)
    place, run = Path(folder), None if isinstance(encoder, Encoder) else encoder_folder(encoder)
    encoder = load_encoder(encoder)
    contents = _contents(encoder, to)
    contents[CARD] = make_card(encoder, to, run, license, push).encode()
    with locked(place):
        recover(place)
        clean(place)
        _check_replaceable(place, overwrite)
        with staged(place) as work:
            for name, content in contents.items():
                write_atomic(work / name, content)
    if push is not None:
        push_folder(place, push, public, FILES)


def _check_replaceable(place: Path, overwrite: bool) -> None:
    """Refuse a destination that holds an export, unless it is to be replaced, or anything else."""
    if place.exists() and not place.is_dir():
        raise RunError(f"{place} is a file; choose another --out")
    if place.resolve() == Path.cwd():
        raise RunError(f"{place} is the folder you are in, which cannot be replaced; choose another --out")
    found = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    others = [name for name in found if name not in (*FILES, *OLDER)]
    if others or (found and EXPORTED not in found):
        raise RunError(f"{place} holds {(others or found)[0]}, so it is no export; choose another --out")
    if found and not overwrite:
        raise RunError(f"{place} holds an export; choose another --out, or replace it with --overwrite")


def _contents(encoder: Encoder, to: Library) -> dict[str, bytes]:
    """The files of an export but for the model card."""
    vit, weights = encoder.backbone, encoder.backbone.state_dict()
    if isinstance(vit, TimmBackbone) and to == "timm":
        weights, classes = vit.exported()
        files = {"config.json": own_config(vit, encoder, classes)}
    elif not isinstance(vit, ViT) or isinstance(vit, TokenViT):
        raise ConfigError(f"{encoder.model} cannot be exported to {to}: only the ViT of this library has its names")
    elif to == "timm":
        weights, files = to_timm(weights), {"config.json": timm_config(vit, encoder)}
    elif vit.registers and vit.image_size[0] != vit.image_size[1]:
        raise ConfigError(
            "an encoder with registers of images that are not square is for timm only: transformers' is not"
        )
    else:
        weights = to_dinov2(weights) if vit.registers else to_transformers(weights)
        files = {"config.json": transformers_config(vit), PROCESSOR: processor_config(encoder)}
    blob = to_safetensors(weights, {"format": "pt"})
    if isinstance(vit, ViT):  # networks of timm have other names here, which load_encoder does not know
        files[DESCRIPTION] = {**encoder.describe(), "weights_sha256": hashlib.sha256(blob).hexdigest()}
    texts = {name: (to_json(record, indent=2) + "\n").encode() for name, record in files.items()}
    return {EXPORTED: blob, **texts}


def timm_config(vit: ViT, encoder: Encoder) -> dict[str, Any]:
    """config.json as timm reads it from a folder and from the Hub."""
    settings = {
        "img_size": list(vit.image_size),
        "patch_size": vit.patch_size,
        "in_chans": vit.channels,
        "embed_dim": vit.width,
        "depth": vit.depth,
        "num_heads": vit.heads,
        "global_pool": "token",
        "fc_norm": False,  # the norm stays before the pooling, also with global_pool="avg"
        "num_classes": 0,
        **({"reg_tokens": vit.registers} if vit.registers else {}),
    }
    # a name that timm knows; the arguments replace all of its size
    return describe_model("vit_base_patch16_224", vit.width, settings, encoder, "head", "patch_embed.proj")


def own_config(backbone: TimmBackbone, encoder: Encoder, classes: int) -> dict[str, Any]:
    """config.json of one of timm's own networks, whose weights have a classifier of so many classes."""
    known, name = backbone.net.pretrained_cfg, backbone.name.partition(".")[0]
    places = known.get("classifier"), known.get("first_conv")
    record = describe_model(name, backbone.net.num_features, backbone.arguments, encoder, *places)
    record["num_classes"] = record["pretrained_cfg"]["num_classes"] = classes  # of the file; the model has none
    return record


def describe_model(
    name: str, width: int, arguments: Mapping[str, Any], encoder: Encoder, classifier: Any, first_conv: Any
) -> dict[str, Any]:
    """What timm needs to make a model of a name with these arguments, and to load weights and images for it."""
    pretrained = {
        "input_size": [encoder.channels, *encoder.image_size],
        "fixed_input_size": "img_size" in arguments,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": list(encoder.mean),
        "std": spread(encoder),
        "num_classes": 0,
        "classifier": classifier,  # so that num_classes=10 gets a new head
    }
    if encoder.channels == 3:  # timm adapts the convolution of this name, and only knows how to from three channels
        pretrained["first_conv"] = first_conv
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": width,
        "model_args": dict(arguments),
        "pretrained_cfg": pretrained,
    }


def transformers_config(vit: ViT) -> dict[str, Any]:
    """config.json as transformers reads it, of its ViT without a pooling layer: nothing is left without weights."""
    kind = "Dinov2WithRegistersModel" if vit.registers else "ViTMSNModel"
    own: dict[str, Any] = {"model_type": "vit_msn", "intermediate_size": MLP_RATIO * vit.width}
    if vit.registers:
        own = {"model_type": "dinov2_with_registers", "mlp_ratio": MLP_RATIO, "num_register_tokens": vit.registers}
    return {
        "architectures": [kind],
        **own,
        "hidden_size": vit.width,
        "num_hidden_layers": vit.depth,
        "num_attention_heads": vit.heads,
        "layer_norm_eps": NORM_EPS,
        # a number where one is enough: some of transformers' heads know square images only
        "image_size": vit.image_size[0] if vit.image_size[0] == vit.image_size[1] else list(vit.image_size),
        "patch_size": vit.patch_size,
        "num_channels": vit.channels,
    }


def processor_config(encoder: Encoder) -> dict[str, Any]:
    """preprocessor_config.json as transformers' ViTImageProcessor reads it: bytes to normalised images."""
    normalisation = {"image_mean": list(encoder.mean), "image_std": spread(encoder)}
    size = dict(zip(("height", "width"), encoder.image_size, strict=True))
    return {"image_processor_type": "ViTImageProcessor", "size": size, "resample": BICUBIC, **normalisation}


def spread(encoder: Encoder) -> list[float]:
    """The standard deviations to divide by: 1 for a channel that never varies, which others would divide by 0."""
    return [std if std > 0 else 1.0 for std in encoder.std]
