"""Resize, crop, flip and normalise batches of images, without torchvision.

Images are (B, C, H, W), uint8, uint16 or float in [0, 1], and keep their type. What is random is passed as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clustermim.errors import DataError

TRIES = 10  # boxes drawn an image before falling back to the largest central one


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


def resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (B, H, W) brought to `size` as `resize_center_crop` brings images, each pixel that of the nearest."""
    height, width = masks.shape[1:]
    if (height, width) == tuple(size):
        return masks
    box = cover_box(height, width, size)
    rows, columns = (
        (box[axis] + (torch.arange(size[axis], dtype=torch.float64) + 0.5) * box[axis + 2] / size[axis]).long()
        for axis in (0, 1)
    )
    return masks[:, rows.clamp(max=height - 1)[:, None], columns.clamp(max=width - 1)]


def resize_boxes(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """The box (top, left, height, width) of each image, resized to `size` (height, width); bicubic, antialiased."""
    return _resample(images, boxes.to(images.device), size, clip_to_box=True)


def random_boxes(
    draws: Tensor,
    height: int,
    width: int,
    scale: tuple[float, float] = (0.2, 1.0),  # of the area, as MAE crops
    ratio: tuple[float, float] = (3 / 4, 4 / 3),  # width to height
) -> Tensor:
    """Whole-pixel boxes (B, 4) of (top, left, height, width), areas uniform and aspects log-uniform.

    `draws` (4, B, TRIES) are uniform in [0, 1): areas, aspects, tops and lefts of so many tries each.
    """
    boxes = [random_box(one, height, width, scale, ratio) for one in draws.movedim(1, 0).tolist()]
    return torch.tensor(boxes, dtype=torch.float64).view(-1, 4)


def random_box(
    draws: Sequence[Sequence[float]],
    height: int,
    width: int,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """The box of one image, from its draws (4, TRIES): plain numbers, which Python handles faster than any library."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for share, turn in zip(draws[0], draws[1], strict=True):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
        aspect = math.exp(low + (high - low) * turn)
        tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= tall <= height and 1 <= wide <= width:
            break
    else:  # no try fits a very long image: the largest box of an allowed aspect
        largest = min(max(width / height, ratio[0]), ratio[1])
        tall, wide = max(1, min(height, round(width / largest))), max(1, min(width, round(height * largest)))
    return int(draws[2][0] * (height - tall + 1)), int(draws[3][0] * (width - wide + 1)), tall, wide


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


def flip(images: Tensor, which: Tensor) -> Tensor:
    """Mirror those images left to right that are true in `which` (B,)."""
    signed = images.view(torch.int16) if images.dtype == torch.uint16 else images  # torch flips no uint16
    flipped = torch.where(which.to(images.device)[:, None, None, None], signed.flip(-1), signed)
    return flipped.view(images.dtype)


def shift(images: Tensor, offsets: Tensor) -> Tensor:
    """Each image moved by its offset (B, 2) of rows and columns; what lies beyond its borders is mirrored."""
    count, _, height, width = images.shape
    if int(offsets.abs().max()) >= min(height, width):
        raise DataError(
            f"images of {height}×{width} pixels cannot be moved by {int(offsets.abs().max())} mirrored ones"
        )
    rows, columns = (  # (B, H) and (B, W)
        (size - 1) - ((size - 1) - (offsets[:, axis, None] + torch.arange(size)).abs()).abs()
        for axis, size in enumerate((height, width))
    )
    image = torch.arange(count)[:, None, None]
    cut = images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return cut.permute(0, 3, 1, 2).contiguous()


def normalize(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """(images − mean) / std by channel, for float images; a channel that never varies is only centred."""
    centre = torch.as_tensor(mean, dtype=images.dtype, device=images.device)
    spread = torch.as_tensor(std, dtype=images.dtype, device=images.device)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    return (images - centre[:, None, None]).div_(spread[:, None, None])


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
    return small.round_().clamp_(0, torch.iinfo(images.dtype).max).to(images.dtype)


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
