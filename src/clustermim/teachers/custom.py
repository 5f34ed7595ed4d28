"""`module:package.module:factory`: whatever a user's own function makes."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from clustermim.errors import TeacherError, format_error
from clustermim.factories import call_factory
from clustermim.teachers.base import Teacher, to_map
from clustermim.teachers.spec import TeacherSpec

WANTED = "a float tensor (B, N, D), row-major over a grid, or (B, D, h, w)"
SIDE = 64  # of the square images that a new teacher is tried on


class CallableTeacher(Teacher):
    """Any callable from images (B, C, H, W) in [0, 1] to (B, N, D) or (B, D, h, w).

    It may have the attributes `has_position` (True unless it says otherwise), `channels` (3) and `image_size`
    ((64, 64): a height and width that it can take, to try it on). `code` is that of its module.
    """

    def __init__(self, spec: TeacherSpec) -> None:
        super().__init__()
        function, code = call_factory(spec.text, TeacherError, "a callable of images")
        self.code = hashlib.sha256(code).hexdigest()
        self.spec, self.function = spec.text, function  # a torch module becomes a part of this one
        self.has_position = bool(getattr(function, "has_position", True))
        self.channels, size = getattr(function, "channels", 3), getattr(function, "image_size", (SIDE, SIDE))
        sides = size if isinstance(size, tuple | list) else (size, size)
        if not all(isinstance(number, int) and number > 0 for number in (self.channels, *sides)) or len(sides) != 2:
            said = f"channels {self.channels!r} and image_size {size!r}"
            raise TeacherError(f"the teacher {spec.text} says {said}: a number above 0, and one or two of them")
        self.requires_grad_(False).eval()
        with torch.no_grad():
            found = self._call(torch.zeros(2, self.channels, *sides))
        self.dim = found.shape[1 if found.ndim == 4 else 2]

    def features(self, images: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        found = self._call(images)
        if (width := found.shape[1 if found.ndim == 4 else 2]) != self.dim:
            raise TeacherError(f"the teacher {self.spec} gave features of {width} numbers, and of {self.dim} before")
        if found.ndim == 4:
            return found
        count, side = found.shape[1], math.isqrt(found.shape[1])
        own = grid if grid is not None and count == math.prod(grid) else (side, side)
        if math.prod(own) != count:
            raise TeacherError(
                f"the teacher {self.spec} gave {count} tokens an image, which form neither a square nor the grid that "
                f"is asked for, {grid}: let it return (B, D, h, w)"
            )
        return to_map(found, own)

    def _call(self, images: Tensor) -> Tensor:
        """What the callable gives, its type and shape checked."""
        where, shape = f"the teacher {self.spec}", tuple(images.shape)
        try:
            found = self.function(images)
        except Exception as error:  # whatever the user's code raises
            reason = f"{format_error(error)}; --debug shows where"
            raise TeacherError(f"{where} failed on images {shape}: {reason}") from error
        is_float = isinstance(found, Tensor) and found.is_floating_point()
        if not is_float or found.ndim not in (3, 4) or len(found) != len(images) or not found.numel():
            kind = f"{found.dtype} of {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise TeacherError(f"{where} gave {kind} for images {shape}, and not {WANTED}")
        checked: Tensor = found
        return checked
