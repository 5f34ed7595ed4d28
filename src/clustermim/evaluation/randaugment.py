"""RandAugment, by kornia: a few random operations on an image, all of one strength."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clustermim.errors import ConfigError
from clustermim.progress import log_info

GROUP = 16  # images that get the same operations, as kornia works; smaller groups vary more and take longer
STRONGEST = 30  # kornia's magnitudes lie below


class RandAugment:
    """Images (B, C, H, W) in [0, 1] to changed ones, the same for the same seed."""

    def __init__(self, operations: int, magnitude: int, channels: int) -> None:
        # here, because those who do without need not wait for it
        from kornia.augmentation import auto
        from kornia.augmentation.auto.rand_augment.rand_augment import default_policy

        policy = [part for part in default_policy if channels == 3 or part[0][0] != "color"]
        if not 1 <= operations <= len(policy):
            raise ConfigError(f"--randaugment-ops {operations} is not between 0 and the {len(policy)} that there are")
        if not 1 <= magnitude < STRONGEST:
            raise ConfigError(f"--randaugment-magnitude {magnitude} is not between 1 and {STRONGEST - 1}")
        if channels != 3:
            log_info(
                f"RandAugment leaves saturation out for images of {channels} channels; --randaugment-ops 0 turns it off"
            )
        self.policy: Any = auto.RandAugment(operations, magnitude, policy)

    @torch.no_grad()
    def __call__(self, images: Tensor, seed: int) -> Tensor:
        # kornia draws from the global generator of the CPU: it is lent for a moment, so that drop path, which draws
        # from it too, does not notice. In the main thread only: another one would change what this one draws.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            parts = [self.policy(part) for part in torch.split(images, GROUP)]
        return torch.cat(parts).clamp_(0, 1)
