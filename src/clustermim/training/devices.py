"""Where training runs: one process a device. Many devices, on one machine or several, are many ranks of torchrun."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch

from clustermim.data.encoded import CORES
from clustermim.distributed import world_size
from clustermim.errors import ConfigError

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

SMALL_STEP = 1e9  # floating-point operations; at larger steps a free machine gains from threads


def open_fabric(
    device: Device = "auto",  # the fastest that is there
    precision: Precision = "auto",  # bf16 where the hardware has it, fp32 elsewhere: both keep the range of fp32
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
        strategy="ddp" if world_size() > 1 else "auto",
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


def choose_threads(flops: float, threads: int, cores: int, environment: Mapping[str, str]) -> int:
    """One thread for steps of so little work that threads wait longer for each other than they work; else `threads`.

    A number that the user chose stays: by OMP_NUM_THREADS or MKL_NUM_THREADS, or one that torch would not have taken,
    which is the number of cores, or half of it where each counts twice.
    """
    chosen = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(environment) or threads not in (cores, cores // 2)
    return threads if chosen or flops >= SMALL_STEP else 1


@contextmanager
def fitting_threads(flops: float) -> Iterator[None]:
    """Torch's threads as `choose_threads` has them for a step of so much work; afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(choose_threads(flops, before, CORES, os.environ))
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
