"""Resize, crop, flip and normalise batches of images, without torchvision.

Images are (B, C, H, W), uint8 or float in [0, 1], and keep their type. Randomness comes only from the
generator that is passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from clustermim.errors import DataError

_TRIES = 10  # boxes drawn an image before falling back to the largest central one


def cover_box(height: int, width: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest central (top, left, height, width) of the aspect of `size`: what cover-and-crop keeps."""
    scale = max(size[0] / height, size[1] / width)
    box_height, box_width = min(size[0] / scale, height), min(size[1] / scale, width)
    return (height - box_height) / 2, (width - box_width) / 2, box_height, box_width


def resize_center_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize to just cover `size` (height, width) and cut out the centre; bicubic, antialiased."""
    height, width = images.shape[-2:]
    if (height, width) == tuple(size):
        return images
    boxes = images.new_tensor(cover_box(height, width, size), dtype=torch.float64).expand(1, 4)
    return _resample(images, boxes, size, clip_to_box=False)


def random_resized_crop(
    images: Tensor,
    size: tuple[int, int],
    generator: Generator,
    scale: tuple[float, float] = (0.2, 1.0),  # of the area, as MAE crops
    ratio: tuple[float, float] = (3 / 4, 4 / 3),  # width to height
) -> Tensor:
    """A random box of each image, resized to `size` (height, width); bicubic, antialiased."""
    boxes = random_boxes(len(images), images.shape[-2], images.shape[-1], generator, scale, ratio)
    return _resample(images, boxes.to(images.device), size, clip_to_box=True)


def random_boxes(
    count: int, height: int, width: int, generator: Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Whole-pixel boxes (count, 4) of (top, left, height, width), areas uniform and aspects log-uniform."""
    draws = torch.rand((4, count, _TRIES), generator=generator, device=generator.device, dtype=torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * draws[1])
    box_height, box_width = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (box_height >= 1) & (box_height <= height) & (box_width >= 1) & (box_width <= width)
    first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)  # the first try that fits; 0 when none does
    box_height, box_width = box_height.gather(1, first), box_width.gather(1, first)
    # No try fits a very long image: take the largest box of an allowed aspect.
    aspect_here = min(max(width / height, ratio[0]), ratio[1])
    none = ~fits.any(dim=1, keepdim=True)
    box_height[none] = max(1, min(height, round(width / aspect_here)))
    box_width[none] = max(1, min(width, round(height * aspect_here)))
    top = torch.floor(draws[2, :, :1] * (height - box_height + 1))
    left = torch.floor(draws[3, :, :1] * (width - box_width + 1))
    return torch.cat([top, left, box_height, box_width], dim=1)


def convert_channels(images: Tensor, channels: int) -> Tensor:
    """Three channels to one grey (ITU-R 601 weights), or one to three equal ones."""
    have = images.shape[1]
    if have == channels:
        return images
    if have == 1:
        return images.repeat(1, channels, 1, 1)
    if (have, channels) != (3, 1):
        raise DataError(f"images of {have} channels cannot be converted to {channels}")
    pixels = images if images.is_floating_point() else images.to(torch.float32)
    red, green, blue = pixels.unbind(1)
    grey = (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]
    return grey if images.is_floating_point() else grey.round_().to(images.dtype)


def random_flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    draws = torch.rand(len(images), generator=generator, device=generator.device)
    flips = (draws < 0.5).to(images.device)
    return torch.where(flips[:, None, None, None], images.flip(-1), images)


def random_pad_crop(images: Tensor, padding: int, generator: Generator) -> Tensor:
    """Pad with `padding` mirrored pixels all round and cut the old size out at random: a shift of up to `padding`."""
    count, _, height, width = images.shape
    if padding >= min(height, width):
        raise DataError(f"images of {height}×{width} pixels cannot be padded with {padding} mirrored ones")
    offsets = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator, device=generator.device)
    offsets = offsets.to(images.device)
    rows, columns = (  # (B, H) and (B, W); what lies beyond the first and last pixel is mirrored
        (size - 1) - ((size - 1) - (offset + torch.arange(size, device=images.device)).abs()).abs()
        for offset, size in zip(offsets, (height, width), strict=True)
    )
    image = torch.arange(count, device=images.device)[:, None, None]
    cut = images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return cut.permute(0, 3, 1, 2).contiguous()


def normalize(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """(images − mean) / std by channel, for float images; a channel that never varies is only centred."""
    centre = torch.as_tensor(mean, dtype=images.dtype, device=images.device)
    spread = torch.as_tensor(std, dtype=images.dtype, device=images.device)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    return (images - centre[:, None, None]) / spread[:, None, None]


def _resample(images: Tensor, boxes: Tensor, size: tuple[int, int], *, clip_to_box: bool) -> Tensor:
    """Each image's box (top, left, height, width) resized to `size`; one box may serve all images.

    Bicubic interpolation is separable, so it is two products with matrices of weights.
    """
    height, width = images.shape[-2:]
    pixels = images if images.is_floating_point() else images.to(torch.float32)
    rows = _weights(boxes[:, 0], boxes[:, 2], height, size[0], clip_to_box).to(pixels.dtype)  # (B or 1, h, H)
    columns = _weights(boxes[:, 1], boxes[:, 3], width, size[1], clip_to_box).to(pixels.dtype)  # (B or 1, w, W)
    small = rows[:, None] @ (pixels @ columns[:, None].mT)  # (B, C, h, w)
    if images.is_floating_point():
        return small.clamp_(0, 1)  # bicubic weights overshoot at edges
    return small.round_().clamp_(0, 255).to(images.dtype)


def _weights(start: Tensor, length: Tensor, pixels: int, out: int, clip_to_box: bool) -> Tensor:
    """Bicubic weights (B, out, pixels) that resize [start, start + length) of a line to `out` pixels.

    When shrinking, the kernel is widened by the same factor, which is what antialiasing means here. Pixels
    beyond the image, or with `clip_to_box` beyond the box, have no weight.
    """
    start, step = start[:, None, None], (length / out)[:, None, None]  # step: input pixels an output pixel
    places = torch.arange(out, dtype=start.dtype, device=start.device)[None, :, None]
    centre = start + (places + 0.5) * step  # (B, out, 1)
    stretch = step.clamp(min=1)
    # Only the few pixels under the kernel are weighed; 4·stretch is its width.
    under = torch.arange(math.ceil(4 * max(pixels / out, 1)) + 1, dtype=start.dtype, device=start.device)
    positions = torch.floor(centre - 2 * stretch) + under  # (B, out, few)
    weights = _cubic((positions + 0.5 - centre).abs() / stretch)
    begin, end = (start, start + out * step) if clip_to_box else (0.0, float(pixels))
    weights = weights * ((positions + 0.5 > begin) & (positions + 0.5 < end))
    weights = weights / weights.sum(dim=-1, keepdim=True)
    everywhere = weights.new_zeros((len(start), out, pixels))
    return everywhere.scatter_add_(2, positions.long().clamp_(0, pixels - 1), weights)


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = −1/2 at distances x ≥ 0, the one of Pillow and of torch's antialiasing."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
