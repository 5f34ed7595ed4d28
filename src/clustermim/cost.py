"""What work costs, wherever it runs: operations of its matrix products, and seconds of CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch.utils import flop_counter

from clustermim.distributed import all_reduce_sum
from clustermim.threads import within

aten, count, count_backward = torch.ops.aten, flop_counter.sdpa_flop_count, flop_counter.sdpa_backward_flop_count
CPU_ATTENTION: dict[Any, Callable[..., int]] = {  # which torch does not count by itself; called with shapes
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *s, **_: cast(Any, count)(*s[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *s, **_: cast(Any, count_backward)(*s[:4]),
}
_measured: ContextVar[tuple[dict[str, float], ...]] = ContextVar("measured", default=())  # those open, innermost last


@contextmanager
def measure_cost() -> Iterator[dict[str, float]]:
    """Gets `flops`, two for each multiplication in a matrix product, and `cpu_seconds` of all threads at its end."""
    cost = {"flops": 0, "cpu_seconds": 0.0}
    counters: list[flop_counter.FlopCounterMode] = []
    around = within.get()  # a measurement that this one is part of counts in other threads, too

    def count_here() -> flop_counter.FlopCounterMode:
        counters.append(flop_counter.FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION))
        return counters[-1]

    @contextmanager
    def count_in_thread() -> Iterator[None]:
        with around(), count_here():
            yield

    start, before, outer = time.process_time(), within.set(count_in_thread), _measured.set((*_measured.get(), cost))
    try:
        with count_here():
            yield cost
    finally:
        within.reset(before)
        _measured.reset(outer)
    cost["flops"] += sum(counter.get_total_flops() for counter in counters)
    cost["cpu_seconds"] = round(cost["cpu_seconds"] + time.process_time() - start, 3)


def add_cost(flops: float, cpu_seconds: float) -> None:
    """Count what was computed before, and is used now, as if it were computed now."""
    for cost in _measured.get():
        cost["flops"] += round(flops)
        cost["cpu_seconds"] += cpu_seconds


def over_ranks(cost: dict[str, float]) -> dict[str, float]:
    """What all ranks together spent."""
    total: list[float] = all_reduce_sum(torch.tensor(list(cost.values()), dtype=torch.float64)).tolist()
    return dict(zip(cost, total, strict=True))
