"""An encoder as a model of another library, which need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from clustermim.errors import ConfigError
from clustermim.files import wrap_os_errors, write_atomic
from clustermim.models.backbones import Backbone
from clustermim.models.encoder import Encoder, load_encoder, to_safetensors
from clustermim.models.timm_backbones import TimmBackbone
from clustermim.models.vit import MLP_RATIO, NORM_EPS, TokenViT, ViT
from clustermim.runs import to_json

Library = Literal["timm", "transformers"]

BICUBIC = 3  # Pillow's number, which transformers stores

# Parts of names on the Hub, which every version of transformers reads and writes; inside, version 5 has shorter ones.
NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "blocks": "encoder.layer",
    "norm.": "layernorm.",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
QKV = ("query", "key", "value")
# The same of Dinov2WithRegistersModel, which transformers has for a ViT with registers.
REGISTER_NAMES = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "blocks": "encoder.layer",
    "attn.proj": "attention.output.dense",
}


def export(encoder: str | Path | Encoder, to: Library, folder: str | Path) -> None:
    """Write an encoder as a model of timm or transformers: weights and configuration, without a head.

    >>> import os, tempfile
    >>> from clustermim.models import build_backbone
    >>> encoder = Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(encoder, "timm", folder)
    ...     sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']

    Args:
        encoder: an encoder, or the folder of one.
        to: the library that shall load it: `timm.create_model("local-dir:FOLDER", pretrained=True)` or
            `transformers.ViTModel.from_pretrained(FOLDER, add_pooling_layer=False)`; of an encoder with registers
            `transformers.Dinov2WithRegistersModel.from_pretrained(FOLDER)`.
        folder: where to write; it is made if need be.
    """
    encoder, place = load_encoder(encoder), Path(folder)
    vit, weights = encoder.backbone, encoder.backbone.state_dict()
    if to not in get_args(Library):
        raise ConfigError(f"an encoder is exported to {' or '.join(get_args(Library))}, not to {to!r}")
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
        files = {"config.json": transformers_config(vit), "preprocessor_config.json": processor_config(encoder)}
    with wrap_os_errors(place):
        write_atomic(place / "model.safetensors", to_safetensors(weights, {"format": "pt"}))
        for name, record in files.items():
            write_atomic(place / name, (to_json(record, indent=2) + "\n").encode())


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


def transformers_class(vit: Backbone) -> str:
    """The name of the class that transformers has for it."""
    return "Dinov2WithRegistersModel" if vit.registers else "ViTModel"


def transformers_config(vit: ViT) -> dict[str, Any]:
    """config.json as transformers' ViTConfig or Dinov2WithRegistersConfig reads it."""
    own: dict[str, Any] = {"model_type": "vit", "intermediate_size": MLP_RATIO * vit.width}
    if vit.registers:
        own = {"model_type": "dinov2_with_registers", "mlp_ratio": MLP_RATIO, "num_register_tokens": vit.registers}
    return {
        "architectures": [transformers_class(vit)],
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


def to_timm(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT as timm has it, where registers have positions too: here they are zeros."""
    result = dict(weights)
    if "reg_token" in weights:
        first, others = weights["pos_embed"].tensor_split([1], dim=1)  # (1, 1, D), (1, N, D)
        result["pos_embed"] = torch.cat([first, torch.zeros_like(weights["reg_token"]), others], dim=1)
    return result


def to_dinov2(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ViT with registers as transformers' DINOv2: with scales of 1, and a mask token of zeros."""
    renamed = {("layernorm." + name[5:] if name.startswith("norm.") else name): t for name, t in weights.items()}
    result = to_transformers(renamed, REGISTER_NAMES)
    ones = torch.ones(weights["cls_token"].shape[2])
    for block in {name.split(".")[1] for name in weights if name.startswith("blocks.")}:
        result |= {f"encoder.layer.{block}.layer_scale{place}.lambda1": ones.clone() for place in (1, 2)}
    return {**result, "embeddings.mask_token": torch.zeros(1, len(ones))}


def to_transformers(weights: Mapping[str, Tensor], names: Mapping[str, str] = NAMES) -> dict[str, Tensor]:
    """The state dict of a ViT under transformers' names; the matrix of queries, keys and values becomes three."""
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        theirs = name
        for ours, replacement in names.items():
            theirs = theirs.replace(ours, replacement)
        if "attn.qkv" in theirs:
            pieces = zip(QKV, tensor.chunk(3), strict=True)  # of (3·D, D) or (3·D,), in this order
            result |= {theirs.replace("attn.qkv", f"attention.attention.{part}"): piece for part, piece in pieces}
        else:
            result[theirs] = tensor
    return result
