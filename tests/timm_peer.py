"""timm as a peer of the tests."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch


@cache
def import_timm() -> ModuleType:
    """timm, from its folder apart in the environment (the Makefile puts it there) or from where packages are.

    It imports torchvision. The published wheel is built for CUDA: beside torch's CPU wheel its compiled operators do
    not load, and its import fails where it describes two of them. No test uses them: they only need a name.
    """
    apart = str(Path(sys.prefix) / "timm")
    sys.path.append(apart)
    try:
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
        return importlib.import_module("timm")
    finally:
        sys.path.remove(apart)  # nobody else shall meet that torchvision by chance
