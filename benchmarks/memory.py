"""Peak memory of fitting on a stream, at two numbers of images: it must not grow with them.

python -m benchmarks.memory
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.record import record

SIZES = (5_000, 50_000)
SCRIPT = """
import json, resource, time
from clustermim.data import open_source
from clustermim.tokenizers import KMeansTokenizer
start = time.perf_counter()
KMeansTokenizer(k=50, patch_size=8, max_patches=100_000, epochs=1).fit(open_source("textures:?images={images}&noise=0"))
peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
print(json.dumps({{"images": {images}, "peak_megabytes": peak, "seconds": round(time.perf_counter() - start, 1)}}))
"""


def main() -> None:
    rows = []
    for images in SIZES:
        command = [sys.executable, "-c", SCRIPT.format(images=images)]
        rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    record("memory", {"k": 50, "patch_size": 8, "max_patches": 100_000, "epochs": 1}, rows)


if __name__ == "__main__":
    main()
