"""Where training runs: one process a device. Many devices, on one machine or several, are many ranks of torchrun."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from clustermim.distributed import world_size
from clustermim.errors import ConfigError
from clustermim.training.sharding import Strategy, make_strategy

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Device = Literal["auto", "cpu", "cuda", "mps"]
# fp16 is left out: its loss scaling makes overflowing gradients normal, and then they cannot be reported as a fault
Precision = Literal["auto", "32-true", "bf16-mixed"]

AVAILABLE: dict[str, Callable[[], bool]] = {  # in order of speed
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "cpu": lambda: True,
}


def open_fabric(
    device: Device = "auto",  # the fastest that is there
    precision: Precision = "auto",  # bf16 where the hardware has it, fp32 elsewhere: both keep the range of fp32
    strategy: Strategy = "ddp",
) -> Fabric:
    """A Fabric for this rank, to be made inside `process_group()`."""
    from lightning_fabric import Fabric  # slow to import

    chosen = _choose(device)
    if chosen == "cpu":
        keep_freed_memory()
    mixed = chosen == "cuda" and torch.cuda.is_bf16_supported()
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if world_size() > 1 else 1
    fabric = Fabric(
        accelerator=chosen,
        devices=here,
        num_nodes=world_size() // here,
        strategy=(make_strategy(world_size()) if strategy == "fsdp" else "ddp") if world_size() > 1 else "auto",
        precision=("bf16-mixed" if mixed else "32-true") if precision == "auto" else precision,
    )
    fabric.launch()
    return fabric


def find_device(device: Device | None = None) -> torch.device:
    """Where this rank computes what is not trained; by default the fastest that is there."""
    chosen = _choose(device or "auto")
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if chosen == "cuda" else chosen)


def _choose(device: Device) -> str:
    if device == "auto":
        return next(name for name, there in AVAILABLE.items() if there())
    if not AVAILABLE.get(device, bool)():
        usable = ", ".join(name for name, there in AVAILABLE.items() if there())
        raise ConfigError(f"--device {device} is not available here; there are: {usable}")
    return device


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed, for the next step to use.

    Every step frees all it allocated, and glibc gives large blocks back to the system at once: fetching them anew,
    page by page, took a tenth of the time on a CPU. Elsewhere nothing is asked.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_max = -1, -4  # as malloc.h numbers them
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
