"""All benchmarks on data that is embedded: `python -m benchmarks`, or `--quick` for a look of under three minutes.

Each runs in a process of its own. A quick look is smaller and leaves the committed records as they are.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What makes a benchmark small enough for a quick look, which leaves all others out.
QUICK = {
    "kmeans": "--patches 20000 --k 50 --epochs 1 --rounds 3",
    "nearest": "--patches 10000 --turns 1",
    "inertia": "--patches 5000 --k 10",
    "theory_sparse": "--views 100000",
    "loading": "--images 64 --turns 2",
    "waiting": "--images 256 --batch 64 --epochs 2",
    "data_share": "--data textures:?images=1000&grid=8&patch=4 --turns 3",
    "vit_speed": "--turns 2",
    "gpu_memory": "",
    "scaling": "",
    "growth": "--quick",
}
NEEDS_A_RUN = ("probe_speed",)  # of the user's


def names() -> list[str]:
    """The modules that write a record."""
    modules = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")}
    return sorted(
        name for name, text in modules.items() if "\nfrom benchmarks.record import" in text and name not in NEEDS_A_RUN
    )


def main() -> int:
    """Run all; the number of those that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller, and no record is replaced")
    quick = parser.parse_args().quick
    failed = 0
    with tempfile.TemporaryDirectory() as elsewhere:
        environment = {**os.environ, "BENCHMARK_RECORDS": elsewhere} if quick else None
        for name in names():
            if quick and name not in QUICK:
                print(f"— {name}: not in a quick look", flush=True)
                continue
            print(f"— {name}", flush=True)
            words, start = QUICK[name].split() if quick else [], time.perf_counter()
            process = subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}", *words], env=environment)
            _, status, used = os.wait4(process.pid, 0)
            failed += status != 0
            peak = used.ru_maxrss / 1024  # of the largest of its processes
            print(f"— {name}: {time.perf_counter() - start:.0f} s, peak memory {peak:.0f} MB", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
