"""`module:package.module:factory`: a user's own tokenizer, any callable from images to ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from clustermim.errors import TokenizerError, format_error
from clustermim.factories import PREFIX, call_factory, code_of
from clustermim.patches import grid_size
from clustermim.tokenizers.base import Tokenizer


class ModuleTokenizer(Tokenizer):
    """What a factory gave: a callable from images (B, C, H, W) in [0, 1] to ids (B, N) or (B, rows, columns).

    It says its `vocab_size` and `patch_size`, and `channels` unless they are 3. Each answer is checked. That an image
    gets the same ids in any batch is for the callable to keep.

    Args:
        spec: the text that names the factory.
        function: the callable.
        code: that of its module.
    """

    kind = "module"

    def __init__(self, spec: str, function: Callable[[Tensor], Any], code: bytes = b"") -> None:
        super().__init__()
        self.spec = spec
        self.code = hashlib.sha256(code).hexdigest()[:16]
        self.function = function
        self.vocab_size = _size(spec, function, "vocab_size", None)
        self.patch_size = _size(spec, function, "patch_size", None)
        self.channels_ = _size(spec, function, "channels", 3)
        self.requires_grad_(False).eval()  # a network shall not change by being asked

    def config(self) -> dict[str, Any]:
        return {"spec": self.spec}

    def version(self) -> str:
        return super().version() + self.code

    def tensors(self) -> dict[str, Tensor]:
        raise TokenizerError(
            f"{self.spec} is code, not data, and cannot be saved: use its name where a folder would be"
        )

    def fit(self, source: object) -> Self:
        """Nothing to learn: the factory made it whole."""
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        try:
            found = self.function(images)
        except Exception as error:  # whatever the user's code raises
            raise TokenizerError(
                f"{self.spec} failed on images of shape {tuple(images.shape)}: {format_error(error)}; "
                "--debug shows where"
            ) from error
        return self._checked(found, images).to(images.device, torch.int64)

    def _checked(self, found: Any, images: Tensor) -> Tensor:
        """Ids (B, N), or an error that says what came instead."""
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        shapes = (len(images), rows * columns), (len(images), rows, columns)
        if not isinstance(found, Tensor):
            raise TokenizerError(f"{self.spec} gave a {type(found).__name__}, not a tensor of ids of shape {shapes[0]}")
        if found.shape not in shapes:
            raise TokenizerError(
                f"{self.spec} gave ids of shape {tuple(found.shape)}, not {shapes[0]} or {shapes[1]}, for images of "
                f"shape {tuple(images.shape)} in patches of {self.patch_size}"
            )
        if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            raise TokenizerError(f"{self.spec} gave ids of type {found.dtype}, not integers: end with .long()")
        if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < self.vocab_size:
            raise TokenizerError(
                f"{self.spec} gave ids in {int(found.min())} … {int(found.max())}, not in 0 … {self.vocab_size - 1}, "
                f"as its vocab_size of {self.vocab_size} says"
            )
        return found.flatten(1)  # (B, N)


def is_module(text: str) -> bool:
    """Whether a tokenizer is named by its code, not by a folder."""
    return text.startswith(PREFIX)


def open_module_tokenizer(spec: str) -> ModuleTokenizer:
    """The tokenizer that a factory makes."""
    made, module = call_factory(spec, TokenizerError, "a callable from images to ids")
    return ModuleTokenizer(spec, made, code_of(module))


def _size(spec: str, function: object, name: str, default: int | None) -> int:
    """A positive number that the callable says of itself."""
    value = getattr(function, name, default)
    if value is None:
        raise TokenizerError(f"{spec}: the callable has no attribute {name}; set it, a whole number")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TokenizerError(f"{spec}: its {name} is {value!r}, not a whole number of 1 or more")
    return value
