"""Numbers of speed and memory in docs/gpu.md and the README are those of their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]


def test_memory_is_what_was_counted() -> None:
    text = (HERE / "docs" / "gpu.md").read_text(encoding="utf-8")
    rows = read("gpu-memory")
    assert len(rows) == 6
    for name, row in rows.items():
        numbers = f"{row['million_parameters']} | {row['fixed_megabytes']:,} | {row['megabytes_of_an_image']}"
        assert f"| {name} | {numbers} | {row['megabytes_checkpointed']} |" in text


def read(name: str) -> Any:
    return json.loads((HERE / "results" / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))["results"]


def test_the_readme_says_what_was_measured() -> None:
    text = " ".join((HERE / "README.md").read_text(encoding="utf-8").split())
    small, large = (f"{row['peak_megabytes']:.0f}" for row in read("memory"))
    assert f"peaks at {small} and {large} MB" in text
    idle = {row["size"]: row["ratio"] for row in read("loading") if not row["busy"]}
    assert f"{idle[224]} times at 224 pixels, {idle[64]} at 64" in text
    assert min(row["ratio"] for row in read("loading")) >= 2
