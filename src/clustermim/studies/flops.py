"""What a model costs, from its sizes alone: parameters, floating point operations and memory, and a step of it timed.

Operations are those of matrix products, two for a multiplication and an addition, of one image and one forward pass;
backward takes twice as many. Norms, activations and the softmax are left out: about one in a hundred.
"""

from __future__ import annotations

import time
from functools import cache
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from clustermim.models.masking import random_mask, visible_count
from clustermim.models.mim import Layout, make_model
from clustermim.models.vit import MLP_RATIO, Size, ViT, find_size
from clustermim.patches import grid_size
from clustermim.training import Device, Precision, adamw, open_fabric, parameter_groups

BACKWARD = 3  # forward and backward together, in forward passes
STATE = 16  # bytes of a trained parameter: itself, its gradient and AdamW's two averages, in float32
# Bytes that backward needs of a token in a block, for each number of its width, as autograd keeps them of our blocks.
KEPT = {"bf16-mixed": 36, "32-true": 64}
PASSING = 20  # the same where nothing is kept: the tokens, and the hidden layer of the MLP before and after its GELU
LOGIT = 10  # bytes of a predicted number: as it comes, in float32 for the loss, and its gradient
PIXEL = 8  # bytes of a number of an image: in [0, 1], and normalised

STEP = 2e10  # operations that a timed step should have: enough to be busy, few enough to wait for
STEPS = 4  # the first of which is not counted


class Shape(NamedTuple):
    """A model and its images."""

    model: str  # the name of its size
    image: tuple[int, int, int]  # (C, H, W)
    patch_size: int

    @property
    def size(self) -> Size:
        return find_size(self.model)

    @property
    def patches(self) -> int:
        """Patches of an image."""
        rows, columns = grid_size(*self.image[1:], self.patch_size)
        return rows * columns

    @property
    def patch_dim(self) -> int:
        """Numbers of a patch."""
        return self.patch_size**2 * self.image[0]

    def build(self) -> ViT:
        """The encoder, wherever torch is told to make tensors."""
        return ViT.of_size(self.model, self.image[1:], self.patch_size, self.image[0])


class Masked(NamedTuple):
    """A model in pretraining: its layout, its mask and the numbers it predicts of a masked patch."""

    shape: Shape
    layout: Layout
    mask_ratio: float
    out_dim: int
    decoder_width: int = 0  # 0: that of the model's size, as in `pretrain`
    decoder_depth: int = 0

    @property
    def size(self) -> Size:
        return find_size(self.shape.model, self.decoder_width, self.decoder_depth)

    @property
    def visible(self) -> int:
        return visible_count(self.shape.patches, self.mask_ratio)

    @property
    def masked(self) -> int:
        return self.shape.patches - self.visible

    def build(self) -> nn.Module:
        """The encoder with its decoder or head, wherever torch is told to make tensors."""
        return make_model(self.layout, self.shape.build(), self.out_dim, self.decoder_width, self.decoder_depth)


@cache
def parameters(model: Shape | Masked) -> tuple[int, int]:
    """All parameters, and those that are trained; nothing is allocated."""
    with torch.device("meta"):
        found = list(model.build().parameters())
    return sum(p.numel() for p in found), sum(p.numel() for p in found if p.requires_grad)


def blocks_flops(width: int, depth: int, tokens: int, last: int | None = None) -> int:
    """Operations of so many blocks on T tokens; in the last block only the `last` ones at the end ask, as in the model.

    Queries, keys and values take 6·D² a token, the scores and the sum of values 4·T·D, the projection 2·D², and the
    two layers of the MLP 2 · 2·4·D².
    """

    def block(asking: int) -> int:
        after = 2 + 4 * MLP_RATIO  # products with a D×D matrix after attention, times two
        return 6 * tokens * width**2 + 4 * asking * tokens * width + after * asking * width**2

    return (depth - 1) * block(tokens) + block(tokens if last is None else last)


def encoder_flops(shape: Shape) -> int:
    """Operations of the encoder on a whole image."""
    size, patches = shape.size, shape.patches
    return 2 * patches * shape.patch_dim * size.width + blocks_flops(size.width, size.depth, 1 + patches)


def masked_flops(model: Masked) -> int:
    """Operations of a masked image: in MAE's layout the encoder has visible patches only, and a decoder all."""
    size, tokens = model.size, 1 + model.shape.patches
    embed = 2 * model.visible * model.shape.patch_dim * size.width
    if model.layout == "beit":
        blocks = blocks_flops(size.width, size.depth, tokens, model.masked)
        return embed + blocks + 2 * model.masked * size.width * model.out_dim
    seen, narrow = 1 + model.visible, size.decoder_width
    encoder = blocks_flops(size.width, size.depth, seen) + 2 * seen * size.width * narrow
    decoder = blocks_flops(narrow, size.decoder_depth, tokens, model.masked)
    return embed + encoder + decoder + 2 * model.masked * narrow * model.out_dim


class Memory(NamedTuple):
    """Bytes of a training: of the model, and of each image that is computed at once."""

    model: float
    image: float

    def of(self, images: int) -> float:
        return self.model + self.image * images


def masked_memory(model: Masked, precision: Precision) -> Memory:
    """Bytes of a pretraining."""
    size, tokens = model.size, 1 + model.shape.patches
    numbers = (tokens if model.layout == "beit" else 1 + model.visible) * size.depth * size.width
    if model.layout == "mae":
        numbers += tokens * size.decoder_depth * size.decoder_width
    logits = LOGIT * model.masked * model.out_dim
    return Memory(STATE * parameters(model)[1], _kept(precision) * numbers + logits + _pixels(model.shape))


def encoder_memory(shape: Shape, precision: Precision, *, trained: bool) -> Memory:
    """Bytes of an encoder that sees whole images, in training or frozen."""
    numbers = (1 + shape.patches) * shape.size.width
    total, learned = parameters(shape)
    if trained:
        return Memory(STATE * learned, _kept(precision) * numbers * shape.size.depth + _pixels(shape))
    return Memory(4 * total, PASSING * numbers + _pixels(shape))


def measure_speed(model: Masked, batch_size: int, device: Device, precision: Precision) -> float:
    """Operations a second of a few real steps on random images: forward, backward and AdamW."""
    each = BACKWARD * masked_flops(model)
    batch = max(1, min(batch_size, round(STEP / each)))
    fabric = open_fabric(device, precision)
    plain = model.build()
    net, optimizer = fabric.setup(plain, adamw(parameter_groups(plain, 0.05), 1e-4))
    images = torch.rand(batch, *model.shape.image, device=fabric.device)
    mask = random_mask(batch, model.shape.patches, model.mask_ratio, torch.Generator().manual_seed(0))
    mask = mask.to(fabric.device)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = net(images, mask).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return batch * each / median(seconds[1:])


def _kept(precision: Precision) -> int:
    """Bytes kept of a number; `auto` is taken for a GPU."""
    return KEPT["bf16-mixed" if precision == "auto" else precision]


def _pixels(shape: Shape) -> int:
    channels, height, width = shape.image
    return PIXEL * channels * height * width
