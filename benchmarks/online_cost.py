"""What a step with learning clusters costs: matrix products counted on the meta device, for docs/online.md.

python -m benchmarks.online_cost
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clustermim.cost import measure_cost
from clustermim.data import from_arrays
from clustermim.pretraining import Architecture, Masking, Objective, make_task
from clustermim.targets import TargetOptions
from clustermim.targets.online import OnlineOptions
from clustermim.training import SeededBatches

BATCH = 256
CASES: dict[str, dict[str, Any]] = {
    "MAE, normalised pixels": {"target": "pixels"},
    "online, 512 prototypes": {},
    "the same with a queue of 256 images": {"online": OnlineOptions(queue_images=256)},
    "online, 128 prototypes": {"online": OnlineOptions(prototypes=128)},
    "online, 512 prototypes, `--cross-decoder true --predict-fraction 0.25`": {
        "architecture": Architecture(patch_size=4, cross_decoder=True),
        "masks": Masking(predict_fraction=0.25),
    },
}


def step_flops(
    target: str = "online",
    architecture: Architecture = Architecture(patch_size=4),
    masks: Masking = Masking(),
    online: OnlineOptions = OnlineOptions(),
) -> float:
    """Operations of a step of micro on images of 32 pixels."""
    source = from_arrays(np.random.default_rng(0).integers(0, 256, (BATCH, 32, 32, 3), dtype=np.uint8))
    task = make_task(source, target, architecture, masks, TargetOptions(), Objective(), online=online)
    batch = next(SeededBatches(source, BATCH, 0, task.view, task.augment).make(0, 0))
    task.model.to("meta").train()
    task.target.to("meta")
    with measure_cost() as cost:
        batch = batch._replace(images=batch.images.to("meta"), labels=None, mask=batch.mask.to("meta"))
        task.step(task.model, batch)["loss"].backward()
    return cost["flops"]


if __name__ == "__main__":
    print("| | GFLOP a step |\n| --- | --- |")
    for name, options in CASES.items():
        print(f"| {name} | {step_flops(**options) / 1e9:.1f} |")
