"""Images from files, arrays, tables and formulas, all behind one contract: `open_source("folder:images")`."""

from clustermim.data.arrays import from_arrays
from clustermim.data.opening import open_source
from clustermim.data.source import Batch, Source, to_float
from clustermim.data.statistics import channel_stats

__all__ = ["Batch", "Source", "channel_stats", "from_arrays", "open_source", "to_float"]
