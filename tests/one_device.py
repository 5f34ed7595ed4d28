"""A mode in which every operation must find its tensors on one device.

The meta device alone notices numbers that are read, and most mixtures of devices, but neither a product with a tensor
of the CPU nor one that serves as an index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, but for moves and for single numbers of the CPU."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim]
        devices = sorted({tensor.device.type for tensor in given})
        if len(devices) > 1 and func not in MOVES:
            raise RuntimeError(f"{func} on tensors of {' and '.join(devices)}")
        return func(*args, **kwargs)
