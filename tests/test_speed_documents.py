"""Numbers of speed and memory in the docs are those of their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import QUICK, names
from benchmarks.document import document, table

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


def test_the_page_of_speed_says_what_was_measured() -> None:
    text = " ".join((HERE / "docs" / "speed.md").read_text(encoding="utf-8").split())
    small, large = (f"{row['peak_megabytes']:.0f}" for row in read("memory"))
    assert f"peaks at {small} and {large} MB" in text
    vit, micro = read("vit-speed-small"), read("vit-speed-micro")
    assert f"{vit['times_faster']} times as fast as transformers'" in text
    assert f"at {vit['share_of_gemm_peak']:.0%}".replace("%", " %") in text
    assert f"32 pixels runs {micro['times_faster']} times as fast" in text
    (soft, large), (medium, small) = (
        [
            (row["kilobytes_of_a_file"], row["ratio"])
            for row in read("loading")
            if not row["busy"] and row["size"] == size
        ]
        for size in (224, 64)
    )
    assert f"of files of {soft[0]} kB {soft[1]} times at 224 pixels, {medium[1]} at 64" in text
    assert f"of {large[0]} kB {large[1]} and {small[1]}" in text
    assert min(row["ratio"] for row in read("loading")) > 1
    assert min(row["ratio"] for row in read("loading") if row["kilobytes_of_a_file"] < 50) >= 2


def test_the_page_of_performance_is_current() -> None:
    """Written by `python -m benchmarks.document`, never by hand."""
    assert (HERE / "docs" / "performance.md").read_text(encoding="utf-8") == document(HERE / "results" / "benchmarks")


def test_tables_of_records() -> None:
    rows = [{"k": 50, "busy": True, "seconds": [1.0, 3.0, 2.0]}, {"k": 1000, "rate": {"ours": 12345.6}}]
    assert table(rows).splitlines() == [
        "| k | busy | seconds | rate ours |",
        "| --- | --- | --- | --- |",
        "| 50 | yes | 2 (1 … 3) |  |",
        "| 1,000 |  |  | 12,346 |",
    ]
    assert table({"a": {"x": 1}, "b": {"x": 0.12345}}).splitlines()[2:] == ["| a | 1 |", "| b | 0.123 |"]
    assert table({"times_faster": 1.5, "of": [1, 2]}).splitlines()[2:] == ["| times faster | 1.5 |", "| of | 1 … 2 |"]


def test_a_quick_look_is_of_benchmarks_that_are_there() -> None:
    found = names()
    assert set(QUICK) <= set(found)
    assert {"memory", "kmeans", "loading"} <= set(found)
    assert not {"record", "turns", "document", "sections", "__main__"} & set(found)


def test_what_it_would_take_is_what_was_reckoned() -> None:
    text = " ".join((HERE / "docs" / "scaling.md").read_text(encoding="utf-8").split())
    rows = read("scaling")
    for name, row in rows.items():
        hours = " | ".join(f"{row[f'hours_on_{gpus}']} h" for gpus in (1, 8, 64, 256))
        days, cores = row["days_of_a_billion"], row["reading_cores_of_a_gpu"]
        assert f"| {name} | {row['gflops_of_an_image']} | {hours} | {days} days | {cores} |" in text
    huge = rows["huge"]
    assert f"take {huge['gigabytes_ddp']} GB on each GPU with `ddp`, and {huge['gigabytes_fsdp']} GB" in text
    assert {round(row["sending_of_computing"]) for row in rows.values()} == {4, 6}
