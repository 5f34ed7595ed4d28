"""k-means at size: peak memory and seconds of fits in processes of their own, and what follows for 25 million patches.

python -m benchmarks.kmeans_size

The last rows are extrapolated, not measured. Memory is linear in patches. The time of k-means++ grows with K², that of
everything else with patches × K, if it takes as many iterations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.record import record

FITS = ((65_536, 256), (131_072, 256), (131_072, 512), (262_144, 512))  # patches and K
FIRST_CENTERS = (1024, 2048)  # K of k-means++ alone
GOAL = {"patches": 25_000_000, "k": 8192}
RANKS = (1, 8)
FIT = """
import json, resource, time
from clustermim.data import open_source
from clustermim.tokenizers import KMeansTokenizer
source = open_source("textures:?images={images}&grid=8&patch=16&noise=0.1")
start = time.perf_counter()
KMeansTokenizer(k={k}, patch_size=16, max_patches={patches}).fit(source)
spent, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{"peak_megabytes": round(peak, 1), "seconds": round(spent, 1)}}))
"""
PLUS_PLUS = """
import json, time, torch
from clustermim.tokenizers.lloyd import POOL, plus_plus
from clustermim.threads import undivided
pool = torch.randn(POOL * {k}, 64, generator=torch.Generator().manual_seed(0))
start = time.perf_counter()
with undivided():
    plus_plus(pool, {k}, torch.Generator().manual_seed(0))
print(json.dumps({{"seconds": round(time.perf_counter() - start, 2)}}))
"""


def run(script: str, **sizes: int) -> dict[str, Any]:
    """What the script says of itself, in a process of its own."""
    command = [sys.executable, "-c", script.format(**sizes)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(sizes, found, flush=True)
    return {"what": "fit" if script == FIT else "k-means++", **sizes, **found}


def extrapolate(fits: list[dict[str, Any]], starts: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """Memory of each rank, and hours, from the largest of the measured sizes."""
    small, large = (next(fit for fit in fits if (fit["patches"], fit["k"]) == size) for size in (FITS[-2], FITS[-1]))
    slope = (large["peak_megabytes"] - small["peak_megabytes"]) / (large["patches"] - small["patches"])
    own = GOAL["patches"] / ranks
    assigning = large["seconds"] * own * GOAL["k"] / (large["patches"] * large["k"])
    starting = starts[-1]["seconds"] * (GOAL["k"] / starts[-1]["k"]) ** 2
    return {
        "what": "fit, extrapolated", "ranks": ranks, **GOAL, "bytes_a_patch": round(slope * 2**20),
        "gigabytes_a_rank": round((large["peak_megabytes"] + slope * (own - large["patches"])) / 1024, 1),
        "hours": round((assigning + starting) / 3600, 1),
    }  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    fits = [run(FIT, patches=patches, k=k, images=patches // 64) for patches, k in FITS]
    starts = [run(PLUS_PLUS, k=k) for k in FIRST_CENTERS]
    config = {"data": "textures, noise 0.1", "patch_size": 16, "dimension": 768}
    record("kmeans-size", config, [*fits, *starts, *(extrapolate(fits, starts, ranks) for ranks in RANKS)])


if __name__ == "__main__":
    main()
