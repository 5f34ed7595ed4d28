"""The stage that decodes images once and for all: `clustermim data decode`."""

from __future__ import annotations

import math
import shutil

from clustermim.data.cache import cache_folder
from clustermim.data.decoded import DecodedSource, write_decoded
from clustermim.data.images import EncodedSource
from clustermim.data.opening import View, open_source
from clustermim.data.shards import ShardSource
from clustermim.errors import DataError
from clustermim.progress import log_info, track, warn_skipped


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
    origin = source.source if isinstance(source, View) else source
    if not isinstance(origin, EncodedSource):
        raise DataError(f"{data} holds no image files: there is nothing to decode")
    if isinstance(origin, ShardSource):
        raise DataError(f"{data} is streamed in an order of its own and cannot be decoded ahead: unpack it to a folder")
    needed, home = len(source) * math.prod(source.shape), cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if needed > free:
        raise DataError(
            f"{data} needs {needed / 1e9:.1f} GB in {home}, where {free / 1e9:.1f} GB are free: choose a smaller "
            "?size= or ?limit=, or set CLUSTERMIM_HOME to another disk"
        )
    log_info(f"decoding {len(source):,} images into {home}, {needed / 1e6:,.0f} MB")
    path = write_decoded(source, lambda batches, total: track(batches, "decoding", total=total))
    warn_skipped(source.skipped)
    print(f"wrote {path}; --data {data} reads it from now on")
