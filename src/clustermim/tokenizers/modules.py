"""`module:package.module:factory`: a user's own tokenizer, any callable from images to ids."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from clustermim.errors import TokenizerError, format_error
from clustermim.patches import grid_size
from clustermim.tokenizers.base import Tokenizer


class ModuleTokenizer(Tokenizer):
    """What a factory gave: a callable from images (B, C, H, W) in [0, 1] to ids (B, N) or (B, rows, columns).

    It says its `vocab_size` and `patch_size`, and `channels` unless they are 3. Each answer is checked. That an image
    gets the same ids in any batch is for the callable to keep. `code` is that of its module.
    """

    kind = "module"

    def __init__(self, spec: str, function: Callable[[Tensor], Any], code: bytes = b"") -> None:
        super().__init__()
        self.spec, self.function, self.code = spec, function, hashlib.sha256(code).hexdigest()[:16]
        self.vocab_size, self.patch_size = (_size(spec, function, name, None) for name in ("vocab_size", "patch_size"))
        self.channels_ = _size(spec, function, "channels", 3)
        self.requires_grad_(False).eval()  # a network shall not change by being asked

    @classmethod
    def of_object(cls, function: Callable[[Tensor], Any]) -> Self:
        """A callable that was made elsewhere, as in a notebook; its name is that of its class."""
        try:
            code = inspect.getsource(type(function))
        except (OSError, TypeError):  # typed into an interpreter, or compiled
            code = ""
        return cls(type(function).__qualname__, function, code.encode())

    def config(self) -> dict[str, Any]:
        return {"spec": self.spec}

    def version(self) -> str:
        return super().version() + self.code

    def tensors(self) -> dict[str, Tensor]:
        raise TokenizerError(f"{self.spec} is code, not data, and cannot be saved: use its name in place of a folder")

    def fit(self, source: object) -> Self:
        """Nothing to learn: the factory made it whole."""
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        try:
            found = self.function(images)
        except Exception as error:  # whatever the user's code raises
            problem = f"failed on images of shape {tuple(images.shape)}: {format_error(error)}; --debug shows where"
            raise TokenizerError(f"{self.spec} {problem}") from error
        if problem := self._problem(found, images):
            raise TokenizerError(f"{self.spec} gave {problem}")
        ids: Tensor = found.flatten(1).to(images.device, torch.int64)  # (B, N)
        return ids

    def _problem(self, found: Any, images: Tensor) -> str:
        """What is wrong with its answer; nothing if it is right."""
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        shapes = (len(images), rows * columns), (len(images), rows, columns)
        if not isinstance(found, Tensor):
            return f"a {type(found).__name__}, not a tensor of ids of shape {shapes[0]}"
        if found.shape not in shapes:
            made = f"for images of shape {tuple(images.shape)} in patches of {self.patch_size}"
            return f"ids of shape {tuple(found.shape)}, not {shapes[0]} or {shapes[1]}, {made}"
        if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            return f"ids of type {found.dtype}, not integers: end with .long()"
        low, high = (int(found.min()), int(found.max())) if found.numel() else (0, 0)
        if 0 <= low <= high < self.vocab_size:
            return ""
        return f"ids in {low} … {high}, not in 0 … {self.vocab_size - 1}, as its vocab_size of {self.vocab_size} says"


def _size(spec: str, function: object, name: str, default: int | None) -> int:
    """A positive number that the callable says of itself."""
    value = getattr(function, name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TokenizerError(f"{spec}: its {name} is {value!r}, not a whole number of 1 or more")
    return value
