"""The stage that writes an encoder for another library: `clustermim export`. It needs neither timm nor transformers."""

from __future__ import annotations

from typing import Any, Literal

from safetensors.torch import save

from clustermim.files import write_atomic
from clustermim.models.naming import to_transformers
from clustermim.models.storage import Encoder, load_encoder
from clustermim.models.vit import MLP_RATIO, NORM_EPS, Block
from clustermim.runs import check_not_inside, open_run, to_json

Library = Literal["timm", "transformers"]

BICUBIC = 3  # Pillow's number, which transformers stores


def export(run: str, to: Library, out: str, overwrite: bool = False) -> None:
    """Write the encoder of a run as a model of timm or transformers.

    Args:
        run: the folder of a pretrained or fine-tuned encoder; of the latter, without its head.
        to: the library that shall load it.
        out: the folder to write.
        overwrite: replace a complete run in `out`.
    """
    check_not_inside(run, out, "the run to export")
    encoder = load_encoder(run)
    weights = encoder.vit.state_dict()
    if to == "timm":
        files = {"config.json": timm_config(encoder)}
        usage = f"timm.create_model({f'local-dir:{out}'!r}, pretrained=True)"
    else:
        weights = to_transformers(weights)
        files = {"config.json": transformers_config(encoder), "preprocessor_config.json": preprocessor_config(encoder)}
        usage = f"transformers.ViTModel.from_pretrained({out!r}, add_pooling_layer=False)"
    with open_run(out, "export", {"run": run, "to": to}, overwrite=overwrite) as folder:
        blob = save({name: tensor.contiguous() for name, tensor in weights.items()}, {"format": "pt"})
        write_atomic(folder.folder / "model.safetensors", blob)
        for name, record in files.items():
            write_atomic(folder.folder / name, (to_json(record, indent=2) + "\n").encode())
        folder.summary = {
            "results": {"parameters": sum(tensor.numel() for tensor in weights.values())},
            "weights": encoder.weights,
        }
    print(f"wrote an encoder for {to} to {out}; load it with {usage}")


def timm_config(encoder: Encoder) -> dict[str, Any]:
    """config.json as timm reads it from a folder and from the Hub."""
    vit = encoder.vit
    settings = {
        "img_size": list(vit.image_size),
        "patch_size": vit.patch_size,
        "in_chans": vit.channels,
        "embed_dim": vit.width,
        "depth": len(vit.blocks),
        "num_heads": heads(encoder),
        "mlp_ratio": MLP_RATIO,
        "class_token": True,
        "global_pool": "token",
        "fc_norm": False,  # the norm stays before the pooling, also with global_pool="avg"
        "num_classes": 0,
    }
    pretrained = {
        "input_size": [vit.channels, *vit.image_size],
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "crop_mode": "center",
        "mean": list(encoder.mean),
        "std": spread(encoder),
        "num_classes": 0,
        "classifier": "head",  # so that num_classes=10 gets a new head
    }
    if vit.channels == 3:  # timm adapts the convolution of this name, and only knows how to from three channels
        pretrained["first_conv"] = "patch_embed.proj"
    return {
        "architecture": "vit_base_patch16_224",  # a name that timm knows; the arguments replace all of its size
        "num_classes": 0,
        "num_features": vit.width,
        "model_args": settings,
        "pretrained_cfg": pretrained,
    }


def transformers_config(encoder: Encoder) -> dict[str, Any]:
    """config.json as transformers' ViTConfig reads it."""
    vit = encoder.vit
    return {
        "architectures": ["ViTModel"],
        "model_type": "vit",
        "hidden_size": vit.width,
        "num_hidden_layers": len(vit.blocks),
        "num_attention_heads": heads(encoder),
        "intermediate_size": MLP_RATIO * vit.width,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": NORM_EPS,
        # a number where one is enough: some of transformers' heads know square images only
        "image_size": vit.image_size[0] if vit.image_size[0] == vit.image_size[1] else list(vit.image_size),
        "patch_size": vit.patch_size,
        "num_channels": vit.channels,
        "qkv_bias": True,
    }


def preprocessor_config(encoder: Encoder) -> dict[str, Any]:
    """preprocessor_config.json as transformers' ViTImageProcessor reads it: bytes to normalised images."""
    height, width = encoder.vit.image_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": BICUBIC,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(encoder.mean),
        "image_std": spread(encoder),
    }


def heads(encoder: Encoder) -> int:
    """Attention heads of each block."""
    block = encoder.vit.blocks[0]
    assert isinstance(block, Block)
    return block.attn.heads


def spread(encoder: Encoder) -> list[float]:
    """The standard deviations to divide by: 1 for a channel that never varies, which others would divide by 0."""
    return [std if std > 0 else 1.0 for std in encoder.std]
