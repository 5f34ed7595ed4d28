"""What a model costs, before it is there: parameters, floating point operations and memory.

Operations are of one image and one forward pass, as torch counts them; backward takes twice as many.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clustermim.models.masking import Mask, visible_count
from clustermim.models.mim import Layout, make_model
from clustermim.models.vit import ViT, find_size
from clustermim.patches import grid_size

BACKWARD = 3  # forward and backward together, in forward passes
STATE = 16  # bytes of a trained parameter: itself, its gradient and AdamW's two averages, in float32
# Bytes that backward needs of a token in a block, for each number of its width, as autograd keeps them of our blocks.
KEPT = {"auto": 36, "bf16-mixed": 36, "32-true": 64}  # auto is taken for a GPU
PASSING = 20  # the same where nothing is kept: the tokens, and the hidden layer of the MLP before and after its GELU
LOGIT = 10  # bytes of a predicted number: as it comes, in float32 for the loss, and its gradient
PIXEL = 8  # bytes of a number of an image: in [0, 1], and normalised


class Model(NamedTuple):
    """An encoder and its images; with a layout, in pretraining: its mask, and the numbers it predicts of a patch."""

    size: str
    image: tuple[int, int, int]  # (C, H, W)
    patch_size: int
    layout: Layout | None = None
    mask_ratio: float = 0.75
    out_dim: int = 1
    decoder_width: int = 0  # 0: that of the model's size, as in `pretrain`
    decoder_depth: int = 0

    @property
    def patches(self) -> int:
        rows, columns = grid_size(*self.image[1:], self.patch_size)
        return rows * columns

    @property
    def patch_dim(self) -> int:
        return self.patch_size**2 * self.image[0]

    @property
    def visible(self) -> int:
        return visible_count(self.patches, self.mask_ratio) if self.layout else self.patches

    def build(self) -> nn.Module:
        """The model, wherever torch is told to make tensors."""
        encoder = ViT.of_size(self.size, self.image[1:], self.patch_size, self.image[0])
        if self.layout is None:
            return encoder
        return make_model(self.layout, encoder, self.out_dim, self.decoder_width, self.decoder_depth)


class Counts(NamedTuple):
    """All parameters, those that are trained, and the operations of an image."""

    parameters: int
    trained: int
    flops: int


@cache
def count(model: Model) -> Counts:
    """Parameters and operations of a model; nothing is allocated."""
    if model.out_dim > 1:  # numbers that are predicted beside the first: rows of the last matrix, for each masked patch
        more, size = model.out_dim - 1, find_size(model.size, model.decoder_width, model.decoder_depth)
        width, first = size.decoder_width if model.layout == "mae" else size.width, count(model._replace(out_dim=1))
        flops = first.flops + 2 * (model.patches - model.visible) * width * more
        return Counts(first.parameters + more * (width + 1), first.trained + more * (width + 1), flops)
    with torch.device("meta"):
        net, images = model.build(), torch.empty(1, *model.image)
        keep, masked = (torch.empty(1, n, dtype=torch.long) for n in (model.visible, model.patches - model.visible))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(images, Mask(keep, masked)) if model.layout else net(images)
    found = list(net.parameters())
    trained = sum(p.numel() for p in found if p.requires_grad)
    return Counts(sum(p.numel() for p in found), trained, counter.get_total_flops())


class Memory(NamedTuple):
    """Bytes of a training: of the model, and of each image that is computed at once."""

    model: float
    image: float

    def of(self, images: int) -> float:
        return self.model + self.image * images


def memory(model: Model, precision: str = "auto", *, trained: bool = True) -> Memory:
    """Bytes of a model in training, or frozen."""
    size, tokens = find_size(model.size, model.decoder_width, model.decoder_depth), 1 + model.patches
    channels, height, width = model.image
    pixels = PIXEL * channels * height * width
    if not trained:
        return Memory(4 * count(model).parameters, PASSING * tokens * size.width + pixels)
    numbers = (1 + model.visible if model.layout == "mae" else tokens) * size.depth * size.width
    if model.layout == "mae":
        numbers += tokens * size.decoder_depth * size.decoder_width
    logits = LOGIT * (model.patches - model.visible) * model.out_dim
    return Memory(STATE * count(model).trained, KEPT[precision] * numbers + logits + pixels)
