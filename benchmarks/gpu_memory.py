"""Bytes that a training step keeps, counted on the meta device: weights, gradients, AdamW's moments, and activations.

Activations are what autograd saves of one image in float32, without the model's parameters. No GPU was measured.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.record import record
from clustermim.models.masking import draw_from, random_mask
from clustermim.models.mim import make_model
from clustermim.models.vit import SIZES, Block, ViT

SIDE, PATCH, RATIO, TARGET = 224, 16, 0.75, 768
BATCH = 8  # images that are counted at once


def count(size: str) -> dict[str, float]:
    """Parameters in millions, fixed bytes of training, and bytes of an image, also with checkpointed activations."""
    with torch.device("meta"):
        model = make_model("mae", ViT.of_size(size, (SIDE, SIDE), PATCH, 3), TARGET)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    whole = count_activations(model)
    for block in model.modules():
        if isinstance(block, Block):
            block.checkpointed = block is not model.decoder_blocks[0]  # the largest, as while it is computed again
    return {
        "million_parameters": round(parameters / 1e6, 1),
        "fixed_megabytes": round((4 * parameters + 12 * trained) / 1e6),  # weights; gradients and two moments
        "megabytes_of_an_image": round(whole / 1e6, 1),
        "megabytes_checkpointed": round(count_activations(model) / 1e6, 1),
    }


def count_activations(model: nn.Module) -> float:
    """Bytes that autograd keeps of one image."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    alive: list[torch.UntypedStorage] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)  # so that no other gets its address
        return tensor

    patches = (SIDE // PATCH) ** 2
    mask = random_mask(draw_from(torch.Generator(), BATCH), patches, RATIO).to("meta")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(torch.empty(BATCH, 3, SIDE, SIDE, device="meta"), mask).square().mean()
    assert loss.device.type == "meta"
    return sum(kept.values()) / BATCH


def main() -> None:
    settings = {"image": SIDE, "patch_size": PATCH, "mask_ratio": RATIO, "layout": "mae", "precision": "32-true"}
    record("gpu-memory", settings, {size: count(size) for size in SIZES})


if __name__ == "__main__":
    main()
