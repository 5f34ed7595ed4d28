"""`clustermim data get`: images downloaded."""

from __future__ import annotations

from clustermim.data.cache import cache_folder
from clustermim.data.cifar import DATASETS
from clustermim.data.download import MIRRORS, install
from clustermim.errors import DataError


def get(name: str, force: bool = False) -> None:
    """Download a dataset into the cache, verified.

    Args:
        name: cifar10 or cifar100.
        force: fetch it again even when it is there.
    """
    if name not in DATASETS:
        raise DataError(f"there is nothing to download named {name!r}; there are: {', '.join(DATASETS)}")
    facts = DATASETS[name]
    folder = install(facts, cache_folder(), MIRRORS, force=force)
    counts = ", ".join(f"{known.count:,} {split}" for split, known in facts.splits.items())
    print(f"{name} is in {folder}: {counts} images; use --data {name}/train")
