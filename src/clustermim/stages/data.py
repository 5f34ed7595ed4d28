"""`clustermim data get` and `clustermim data decode`: images downloaded, and images decoded once and for all."""

from __future__ import annotations

from clustermim.data import open_source
from clustermim.data.cache import cache_folder
from clustermim.data.cifar import DATASETS
from clustermim.data.download import MIRRORS, install
from clustermim.data.opening import DecodedSource, write_decoded
from clustermim.errors import DataError
from clustermim.progress import warn_skipped


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


def decode(data: str) -> None:
    """Decode all images of a source into one array in the cache; the same `--data` is read from there ever after.

    For trainings that wait for images: every epoch decodes all files again otherwise. Nothing else changes, not even
    the order of the images. When files come, go or change their size, all are read from the files again, as before.

    Args:
        data: where the images are: `folder:PATH?size=224`, `parquet:PATH`, `hf:NAME`.
    """
    source = open_source(data)
    if isinstance(source, DecodedSource):
        print(f"{data} is decoded already")
        return
    path = write_decoded(source)
    warn_skipped(source.skipped)
    print(f"wrote {path}; --data {data} reads it from now on")
