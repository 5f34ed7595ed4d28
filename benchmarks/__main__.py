"""All benchmarks at a size that takes some minutes, on data that is embedded."""

import runpy
import sys

NAMES = ("kmeans", "inertia", "memory", "tcas_by_size", "theory_sparse", "data_share", "vit_speed")

for name in NAMES:
    sys.argv = [name]
    print(f"— {name}", flush=True)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
