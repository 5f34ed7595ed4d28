"""Mean and standard deviation of the channels of a source, computed once and kept."""

from __future__ import annotations

import contextlib
import json
import math
from typing import NamedTuple

import numpy as np
import torch

from clustermim.data.cache import cache_folder, write_cached
from clustermim.data.source import Source
from clustermim.errors import DataError
from clustermim.reading import read_json


class ChannelStats(NamedTuple):
    """One number a channel, in units of [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_stats(source: Source) -> ChannelStats:
    """Mean and (population) standard deviation of each channel over all pixels, kept in the cache by fingerprint."""
    path = cache_folder() / "statistics" / f"{source.fingerprint}.json"
    try:
        stored = read_json(path)
        stats = ChannelStats(tuple(map(float, stored["mean"])), tuple(map(float, stored["std"])))
        if len(stats.mean) == len(stats.std) == source.shape[0] and all(map(math.isfinite, stats.mean + stats.std)):
            return stats
    except (OSError, ValueError, TypeError, KeyError):  # not there, or nothing usable
        pass
    # One pass that only counts, so the result depends neither on the order nor on the batches.
    white = int(np.iinfo(source.dtype).max)
    counts = torch.zeros((source.shape[0], white + 1), dtype=torch.int64)  # pixels by channel and value
    for batch in source.batches(256):
        for channel, histogram in enumerate(counts):
            histogram += torch.bincount(batch.images[:, channel].flatten().int(), minlength=white + 1)
    pixels, values = int(counts[0].sum()), torch.arange(white + 1)
    if not pixels:
        raise DataError(f"{source.spec}: no image can be read; {'; '.join(list(source.skipped.values())[:1])}")
    sums, squares = (counts * values).sum(dim=1).tolist(), (counts * values * values).sum(dim=1).tolist()
    # Python's whole numbers do not overflow, so n·Σx² − (Σx)² is exact.
    roots = [math.sqrt(pixels * xx - x * x) for x, xx in zip(sums, squares, strict=True)]
    stats = ChannelStats(tuple(x / (white * pixels) for x in sums), tuple(root / (white * pixels) for root in roots))
    with contextlib.suppress(DataError):  # a cache that cannot be written costs time only
        write_cached(path, json.dumps(stats._asdict()).encode())
    return stats
