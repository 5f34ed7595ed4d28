"""What work costs, wherever it runs: operations of its matrix products, and seconds of CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
CPU_ATTENTION = {  # which torch does not count by itself
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *args, **_: sdpa_flop_count(*args[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *args, **_: sdpa_backward_flop_count(*args[:4]),
}


@contextmanager
def measure_cost() -> Iterator[dict[str, float]]:
    """Gets `flops`, two for each multiplication in a matrix product, and `cpu_seconds` of all threads at its end."""
    cost: dict[str, float] = {}
    start, counter = time.process_time(), FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    with counter:
        yield cost
    cost |= {"flops": counter.get_total_flops(), "cpu_seconds": round(time.process_time() - start, 1)}
