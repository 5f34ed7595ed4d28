"""Safetensors files: what their headers say is compared with what is expected before any memory is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clustermim.reading import MOST_BYTES, open_regular

# The names that headers have for types of numbers.
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


class _Undrawn(TorchFunctionMode):
    """Leaves out the drawing of normal numbers, for which the meta device imports torch._dynamo, in seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules that are made inside have weights without numbers, which take no memory."""
    with torch.device("meta"), _Undrawn():
        yield


def read_header(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file without their values, on the meta device.

    OSError where the file cannot be read, ValueError where it is damaged.
    """
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MOST_BYTES, os.fstat(file.fileno()).st_size):
            raise ValueError("its header is empty, longer than the file, or too long")
    try:
        with safe_open(path, framework="np") as content:  # "pt" asks for memory of the size of the file
            parts = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
            shapes = {name: (part.get_shape(), DTYPES[part.get_dtype()]) for name, part in parts.items()}
        return {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in shapes.items()}
    except KeyError as error:
        raise ValueError(f"it holds numbers of the type {error}, which are not read") from None
    except (SafetensorError, RuntimeError, MemoryError) as error:  # also a shape that no tensor has
        raise ValueError(" ".join(str(error).split())) from None


def check_like(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """ValueError, by the first name, shape or type that differs; any type of real numbers will do for another."""
    for name in {**expected, **found}:
        here, there = (_describe(known.get(name)) for known in (expected, found))
        if here != there:
            raise ValueError(f"{name} is {there} in the file and {here} by its description")


def check_tensor(
    tensors: Mapping[str, Tensor], name: str, *shape: int | None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The tensor of that name; ValueError where it has another type or shape, in which None stands for any length."""
    tensor = tensors.get(name)
    found = "not there" if tensor is None else f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)}"
    if tensor is None or tensor.dtype != dtype or len(tensor.shape) != len(shape):
        raise ValueError(f"its {name} are {found}")
    if any(length not in (None, own) for length, own in zip(shape, tensor.shape, strict=True)):
        raise ValueError(f"its {name} are {found}")
    return tensor


def _describe(tensor: Tensor | None) -> str:
    if tensor is None:
        return "not there"
    return f"{'real' if tensor.is_floating_point() else str(tensor.dtype)[6:]} {tuple(tensor.shape)}"
