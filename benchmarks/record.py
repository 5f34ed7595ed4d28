"""Write a measurement with its provenance, and measure what a process takes."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clustermim.provenance import git_commit, versions

HERE = Path(__file__).parents[1] / "results" / "benchmarks"
FOLDER = Path(os.environ.get("BENCHMARK_RECORDS", HERE))  # elsewhere for a quick look, which replaces no record


def record(name: str, config: dict[str, Any], results: Any) -> None:
    """Write NAME.json into FOLDER and print it."""
    entry = {
        "benchmark": name,
        "config": config,
        "results": results,
        "machine": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processor": processor(),
        },
        "versions": versions(),
        "git_commit": git_commit(),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(entry, indent=2, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long the work took, and what it gave."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
